#include "passes/plan/incremental.h"

#include <algorithm>
#include <cmath>

#include "passes/plan/planner.h"

namespace recals::plan {

MemoryCurve::MemoryCurve(std::vector<double> values, int64_t limit) : limit_(limit), values_(std::move(values)) {
  const size_t blocks = (values_.size() + kBlock - 1) / kBlock;
  // Whole blocks only; what fills the last one never is above anything.
  values_.resize(blocks * kBlock, -1e300);
  added_.assign(blocks, 0);
  most_.assign(blocks, 0);
  above_of_.assign(blocks, 0);
  dirty_.assign(blocks, 0);
  stale_.assign(blocks, 1);
  for (size_t block = 0; block < blocks; ++block) {
    mark(static_cast<int>(block));
  }
}

void MemoryCurve::add(int begin, int end, double bytes) {
  if (begin >= end) {
    return;
  }
  const int first = begin / kBlock;
  const int last = (end - 1) / kBlock;
  const auto part = [&](int block, int from, int to) {
    for (int i = from; i < to; ++i) {
      values_[i] += bytes;
    }
    stale_[block] = 1;
    mark(block);
  };
  if (first == last) {
    part(first, begin, end);
    return;
  }
  part(first, begin, (first + 1) * kBlock);
  for (int block = first + 1; block < last; ++block) {
    added_[block] += bytes;
    most_[block] += bytes;
    mark(block);
  }
  part(last, last * kBlock, end);
}

void MemoryCurve::set_limit(int64_t limit) {
  limit_ = limit;
  for (size_t block = 0; block < added_.size(); ++block) {
    mark(static_cast<int>(block));
  }
}

void MemoryCurve::refresh() {
  for (const int block : todo_) {
    const double* value = values_.data() + static_cast<size_t>(block) * kBlock;
    if (stale_[block]) {
      double most = value[0];
      for (int i = 1; i < kBlock; ++i) {
        most = std::max(most, value[i]);
      }
      most_[block] = most + added_[block];
      stale_[block] = 0;
    }
    const double limit = static_cast<double>(limit_) - added_[block];
    int64_t above = 0;
    if (most_[block] > static_cast<double>(limit_)) {
      // Four sums, so that the additions need not wait for each other.
      double sum[4] = {0, 0, 0, 0};
      for (int i = 0; i < kBlock; i += 4) {
        for (int k = 0; k < 4; ++k) {
          sum[k] += std::max(0.0, value[i + k] - limit);
        }
      }
      above = static_cast<int64_t>(sum[0] + sum[1] + sum[2] + sum[3]);
    }
    above_ += above - above_of_[block];
    above_of_[block] = above;
    dirty_[block] = 0;
  }
  todo_.clear();
}

int64_t MemoryCurve::above() {
  refresh();
  return above_;
}

int64_t MemoryCurve::peak() {
  refresh();
  double most = 0;
  for (const double of_block : most_) {
    most = std::max(most, of_block);
  }
  return static_cast<int64_t>(most);
}

IncrementalSimulator::IncrementalSimulator(const StepIndex& index, const std::vector<int64_t>& limits) : index_(index) {
  build_moments();

  double total = 0;
  for (const double seconds : index_.seconds) {
    total += seconds;
  }
  // 2^50 ticks for the whole forward: sums are exact, and a double holds them.
  seconds_per_tick_ = total > 0 ? total / static_cast<double>(int64_t{1} << 50) : 1;
  for (const double seconds : index_.seconds) {
    ticks_of_.push_back(static_cast<int64_t>(std::llround(seconds / seconds_per_tick_)));
  }

  const int nodes = index_.nodes;
  const int storages = index_.storages;
  dropped_.assign(storages, 0);
  forward_end_.assign(storages, 0);
  cache_begin_.assign(storages, 0);
  cache_end_.assign(storages, 0);
  rng_end_.assign(nodes, 0);
  bump_.assign(static_cast<size_t>(moments_) * index_.devices, 0);
  replayed_at_.assign(nodes, -1);
  component_of_.assign(nodes, -1);
  member_stamp_.assign(nodes, 0);
  parent_.assign(nodes, 0);
  storage_stamp_.assign(storages, 0);
  moment_stamp_.assign(moments_, 0);
  new_bump_.assign(static_cast<size_t>(moments_) * index_.devices, 0);
  readers_left_.assign(storages, 0);
  slots_left_.assign(storages, 0);
  new_begin_.assign(storages, 0);
  new_end_.assign(storages, 0);
  cached_.assign(storages, 0);
  ran_.assign(nodes, 0);
  now_.assign(index_.devices, 0);

  for (int s = 0; s < storages; ++s) {
    forward_end_[s] = forward_end(s);
    std::vector<double>& curve = base_[index_.device[s]];
    for (int m = forward_begin(s); m < forward_end_[s]; ++m) {
      curve[m] += static_cast<double>(index_.bytes[s]);
    }
  }
  for (int d = 0; d < index_.devices; ++d) {
    curve_of_.push_back(-1);
    if (limits[d] != kNoBudget) {
      curve_of_[d] = static_cast<int>(curves_.size());
      device_of_curve_.push_back(d);
      curves_.emplace_back(std::move(base_[d]), limits[d]);
    }
  }
  base_.clear();
}

void IncrementalSimulator::build_moments() {
  const int devices = index_.devices;
  base_.assign(devices, {});
  std::vector<double> live(devices, 0);
  for (int n = 0; n < index_.nodes; ++n) {
    for (int d = 0; d < devices; ++d) {
      double written = 0;
      for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
        written += index_.device[*s] == d ? static_cast<double>(index_.bytes[*s]) : 0;
      }
      const double transient = static_cast<double>(index_.transient[static_cast<size_t>(n) * devices + d]);
      base_[d].push_back(std::max(transient, written));
    }
  }
  moments_ = index_.nodes;

  std::vector<std::vector<int>> events_of(index_.storages);
  std::vector<int> releases(index_.storages, 0);
  release_end_.assign(index_.storages, 0);
  bool open = false; // the last moment is a run of Change and Peak
  for (int e = 0; e < static_cast<int>(index_.backward.size()); ++e) {
    const StepIndex::Event& event = index_.backward[e];
    position_.push_back(moments_);
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        if (index_.recomputable[event.target]) {
          for (int d = 0; d < devices; ++d) {
            base_[d].push_back(live[d]);
          }
          ++moments_;
          open = false;
          events_of[event.target].push_back(e);
        }
        break;
      case BackwardEvent::Kind::Release:
        open = false;
        events_of[event.target].push_back(e);
        ++releases[event.target];
        release_end_[event.target] = moments_;
        break;
      case BackwardEvent::Kind::Change:
      case BackwardEvent::Kind::Peak: {
        if (!open) {
          for (int d = 0; d < devices; ++d) {
            base_[d].push_back(live[d]);
          }
          ++moments_;
          open = true;
        }
        double& most = base_[event.target].back();
        most = std::max(most, live[event.target] + static_cast<double>(event.bytes));
        if (event.kind == BackwardEvent::Kind::Change) {
          live[event.target] += static_cast<double>(event.bytes);
        }
        break;
      }
    }
  }
  for (int s = 0; s < index_.storages; ++s) {
    if (releases[s] < index_.slots[s]) {
      release_end_[s] = moments_;
    }
    events_of_.entries.insert(events_of_.entries.end(), events_of[s].begin(), events_of[s].end());
    events_of_.close();
  }
}

std::vector<Fate> IncrementalSimulator::fates() const {
  std::vector<Fate> fates;
  for (int s = 0; s < index_.storages; ++s) {
    fates.push_back(fate(s));
  }
  return fates;
}

void IncrementalSimulator::set_fates(const std::vector<Fate>& fates) {
  std::vector<int> different;
  for (int s = 0; s < index_.storages; ++s) {
    if (index_.recomputable[s] && fates[s] != fate(s)) {
      different.push_back(s);
    }
  }
  flip(different);
}

void IncrementalSimulator::set_limits(const std::vector<int64_t>& limits) {
  for (size_t c = 0; c < curves_.size(); ++c) {
    curves_[c].set_limit(limits[device_of_curve_[c]]);
  }
}

double IncrementalSimulator::violation() {
  double sum = 0;
  for (MemoryCurve& curve : curves_) {
    sum += static_cast<double>(curve.above()) / static_cast<double>(std::max<int64_t>(curve.limit(), 1));
  }
  return sum;
}

int64_t IncrementalSimulator::peak(int device) {
  return curves_[curve_of_[device]].peak();
}

int IncrementalSimulator::forward_end(int storage) const {
  if (index_.stays[storage]) {
    return moments_;
  }
  int end = index_.last_read[storage] + 1;
  if (!dropped_[storage]) {
    end = std::max(end, release_end_[storage]);
    for (const int* n = index_.readers.begin(storage); n != index_.readers.end(storage); ++n) {
      if (component_of_[*n] >= 0) {
        end = std::max(end, components_[component_of_[*n]].end);
      }
    }
  }
  return end;
}

inline void IncrementalSimulator::add(int device, int begin, int end, double bytes) {
  if (curve_of_[device] >= 0) {
    curves_[curve_of_[device]].add(begin, end, bytes);
  }
}

void IncrementalSimulator::put_forward_end(int s, int end) {
  const double bytes = static_cast<double>(index_.bytes[s]);
  add(index_.device[s], forward_end_[s], end, bytes);
  add(index_.device[s], end, forward_end_[s], -bytes);
  forward_end_[s] = end;
}

void IncrementalSimulator::put_cache(int s, int begin, int end) {
  const double bytes = static_cast<double>(index_.bytes[s]);
  const int device = index_.device[s];
  if (begin == cache_begin_[s]) {
    add(device, cache_end_[s], end, bytes);
    add(device, end, cache_end_[s], -bytes);
  } else {
    add(device, cache_begin_[s], cache_end_[s], -bytes);
    add(device, begin, end, bytes);
  }
  cache_begin_[s] = begin;
  cache_end_[s] = end;
}

void IncrementalSimulator::put_rng(int n, int end) {
  const double bytes = static_cast<double>(index_.rng_bytes[n]);
  add(index_.rng_device[n], n, rng_end_[n], -bytes);
  add(index_.rng_device[n], n, end, bytes);
  rng_end_[n] = end;
}

void IncrementalSimulator::put_bump(int slot, double bytes) {
  const int moment = slot / index_.devices;
  add(slot % index_.devices, moment, moment + 1, bytes - bump_[slot]);
  bump_[slot] = bytes;
}

void IncrementalSimulator::set_forward_end(int s, int end) {
  if (end != forward_end_[s]) {
    log_.push_back({Change::What::ForwardEnd, s, forward_end_[s], 0, 0});
    put_forward_end(s, end);
  }
}

void IncrementalSimulator::set_cache(int s, int begin, int end) {
  if (begin != cache_begin_[s] || end != cache_end_[s]) {
    log_.push_back({Change::What::Cache, s, cache_begin_[s], cache_end_[s], 0});
    put_cache(s, begin, end);
  }
}

void IncrementalSimulator::set_rng(int n, int end) {
  if (index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0 && end != rng_end_[n]) {
    log_.push_back({Change::What::Rng, n, rng_end_[n], 0, 0});
    put_rng(n, end);
  }
}

void IncrementalSimulator::set_bump(int slot, double bytes) {
  if (bytes != bump_[slot]) {
    log_.push_back({Change::What::Bump, slot, 0, 0, bump_[slot]});
    put_bump(slot, bytes);
  }
}

void IncrementalSimulator::set_replayed_at(int n, int moment) {
  if (moment != replayed_at_[n]) {
    log_.push_back({Change::What::ReplayedAt, n, replayed_at_[n], 0, 0});
    replayed_at_[n] = moment;
  }
}

int IncrementalSimulator::new_component() {
  if (free_components_.empty()) {
    components_.emplace_back();
    gathered_.push_back(0);
    free_components_.push_back(static_cast<int>(components_.size()) - 1);
  }
  const int c = free_components_.back();
  free_components_.pop_back();
  components_[c].nodes.clear();
  new_components_.push_back(c);
  return c;
}

/// Puts the nodes of a component that is touched into the pool.
void IncrementalSimulator::gather(int component) {
  if (component >= 0 && gathered_[component] != stamp_) {
    gathered_[component] = stamp_;
    old_components_.push_back(component);
    const std::vector<int>& nodes = components_[component].nodes;
    pool_.insert(pool_.end(), nodes.begin(), nodes.end());
  }
}

/// `node` is in N now, and so is whatever it needs.
void IncrementalSimulator::need(int node) {
  if (member_stamp_[node] == stamp_) {
    return;
  }
  member_stamp_[node] = stamp_;
  todo_.assign(1, node);
  while (!todo_.empty()) {
    const int n = todo_.back();
    todo_.pop_back();
    members_.push_back(n);
    gather(component_of_[n]);
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      const int p = index_.producer[*s];
      if (dropped_[*s] && member_stamp_[p] != stamp_) {
        member_stamp_[p] = stamp_;
        todo_.push_back(p);
      }
    }
  }
}

void IncrementalSimulator::flip(const std::vector<int>& storages) {
  ++stamp_;
  free_components_.insert(free_components_.end(), old_components_.begin(), old_components_.end());
  flipped_ = storages;
  log_.clear();
  old_components_.clear();
  new_components_.clear();
  old_ticks_ = ticks_;
  pool_.clear();
  members_.clear();
  touched_storages_.clear();
  touched_moments_.clear();

  // Which components change, and which nodes are in N afterwards. The pool grows while it is read.
  for (const int s : storages) {
    dropped_[s] ^= 1;
    gather(component_of_[index_.producer[s]]);
    for (const int* n = index_.readers.begin(s); n != index_.readers.end(s); ++n) {
      gather(component_of_[*n]);
    }
  }
  for (const int s : storages) {
    if (dropped_[s] && index_.slots[s] > 0) {
      need(index_.producer[s]);
    }
  }
  for (size_t i = 0; i < pool_.size(); ++i) {
    const int n = pool_[i];
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (dropped_[*s] && index_.slots[*s] > 0) {
        need(n);
        break;
      }
    }
  }
  std::sort(members_.begin(), members_.end());

  const auto touch_storage = [&](int s) {
    if (storage_stamp_[s] != stamp_) {
      storage_stamp_[s] = stamp_;
      touched_storages_.push_back(s);
    }
  };
  const auto touch_reads = [&](int n) {
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      touch_storage(*s);
    }
  };
  for (const int s : storages) {
    touch_storage(s);
  }

  // Nodes out of their components.
  for (const int n : pool_) {
    ticks_ -= ticks_of_[n];
    touch_reads(n);
    const int moment = replayed_at_[n];
    if (moment >= 0 && moment_stamp_[moment] != stamp_) {
      moment_stamp_[moment] = stamp_;
      touched_moments_.push_back(moment);
      for (int d = 0; d < index_.devices; ++d) {
        new_bump_[static_cast<size_t>(moment) * index_.devices + d] = 0;
      }
    }
    component_of_[n] = -1;
    if (member_stamp_[n] != stamp_) {
      set_replayed_at(n, -1);
      set_rng(n, 0);
      for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
        set_cache(*s, 0, 0);
      }
    }
  }

  // And into new ones.
  const auto root_of = [&](int n) {
    while (parent_[n] != n) {
      parent_[n] = parent_[parent_[n]];
      n = parent_[n];
    }
    return n;
  };
  for (const int n : members_) {
    ticks_ += ticks_of_[n];
    touch_reads(n);
    parent_[n] = n;
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (dropped_[*s]) {
        parent_[root_of(index_.producer[*s])] = n;
      }
    }
  }
  for (const int n : members_) {
    const int root = root_of(n);
    if (component_of_[root] < 0) {
      component_of_[root] = new_component();
    }
    component_of_[n] = component_of_[root];
    components_[component_of_[n]].nodes.push_back(n);
  }
  for (const int c : new_components_) {
    replay_component(components_[c]);
  }
  for (const int moment : touched_moments_) {
    for (int d = 0; d < index_.devices; ++d) {
      const int slot = moment * index_.devices + d;
      set_bump(slot, new_bump_[slot]);
    }
  }
  for (const int s : touched_storages_) {
    set_forward_end(s, forward_end(s));
  }
  // A change adds to a range of the curve, on average some share of its blocks.
  const int64_t per_change = 4 + moments_ / 1500;
  work_ += 10 + static_cast<int64_t>(pool_.size() + 2 * members_.size() + 2 * touched_storages_.size()) +
      per_change * static_cast<int64_t>(log_.size());
}

/// Plays the backward of one component, alone: what it caches and when depends on nothing else.
void IncrementalSimulator::replay_component(Component& component) {
  events_.clear();
  int slots = 0;
  for (const int n : component.nodes) {
    ran_[n] = 0;
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      cached_[*s] = 0;
      new_begin_[*s] = 0;
      new_end_[*s] = 0;
      readers_left_[*s] = 0;
      slots_left_[*s] = index_.slots[*s];
      if (dropped_[*s] && index_.slots[*s] > 0) {
        slots += index_.slots[*s];
        events_.insert(events_.end(), events_of_.begin(*s), events_of_.end(*s));
      }
    }
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (dropped_[*s]) {
        ++readers_left_[*s];
      }
    }
  }
  std::sort(events_.begin(), events_.end());

  component.end = moments_;
  for (const int e : events_) {
    const int s = index_.backward[e].target;
    if (index_.backward[e].kind == BackwardEvent::Kind::Use) {
      if (!ran_[index_.producer[s]]) {
        run_nodes(s, position_[e]);
      }
      continue;
    }
    --slots_left_[s];
    if (cached_[s] && slots_left_[s] == 0 && readers_left_[s] == 0) {
      cached_[s] = 0;
      new_end_[s] = position_[e];
    }
    if (--slots == 0) {
      component.end = position_[e];
      break;
    }
  }

  for (const int n : component.nodes) {
    if (!ran_[n]) {
      set_replayed_at(n, -1);
    }
    set_rng(n, component.end);
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      if (cached_[*s]) {
        new_end_[*s] = component.end;
      }
      if (new_end_[*s] <= new_begin_[*s]) {
        new_begin_[*s] = new_end_[*s] = 0;
      }
      set_cache(*s, new_begin_[*s], new_end_[*s]);
    }
  }
}

/// The same steps as Simulator::replay.
void IncrementalSimulator::run_nodes(int storage, int moment) {
  const int devices = index_.devices;
  todo_.assign(1, index_.producer[storage]);
  ran_[todo_.front()] = 1;
  for (size_t i = 0; i < todo_.size(); ++i) {
    const int n = todo_[i];
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      const int p = index_.producer[*s];
      if (dropped_[*s] && !ran_[p]) {
        ran_[p] = 1;
        todo_.push_back(p);
      }
    }
  }
  std::sort(todo_.begin(), todo_.end());

  double* const most = new_bump_.data() + static_cast<size_t>(moment) * devices;
  if (moment_stamp_[moment] != stamp_) {
    moment_stamp_[moment] = stamp_;
    touched_moments_.push_back(moment);
  }
  std::fill(most, most + devices, 0);
  std::fill(now_.begin(), now_.end(), 0);
  for (const int n : todo_) {
    set_replayed_at(n, moment);
    for (int d = 0; d < devices; ++d) {
      const int64_t rng = d == index_.rng_device[n] ? index_.rng_bytes[n] : 0;
      most[d] = std::max(
          most[d], now_[d] + static_cast<double>(index_.transient[static_cast<size_t>(n) * devices + d] + rng));
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      const int d = index_.device[*s];
      now_[d] += static_cast<double>(index_.bytes[*s]);
      most[d] = std::max(most[d], now_[d]);
    }
    for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
      cached_[*s] = dropped_[*s] && (slots_left_[*s] > 0 || readers_left_[*s] > 0);
      if (cached_[*s]) {
        new_begin_[*s] = moment + 1;
      } else {
        now_[index_.device[*s]] -= static_cast<double>(index_.bytes[*s]);
      }
    }
    for (const int* s = index_.reads.begin(n); s != index_.reads.end(n); ++s) {
      if (dropped_[*s] && --readers_left_[*s] == 0 && cached_[*s] && slots_left_[*s] == 0) {
        cached_[*s] = 0;
        new_end_[*s] = moment + 1;
        now_[index_.device[*s]] -= static_cast<double>(index_.bytes[*s]);
      }
    }
  }
}

void IncrementalSimulator::undo() {
  for (size_t i = log_.size(); i > 0; --i) {
    const Change& change = log_[i - 1];
    switch (change.what) {
      case Change::What::ForwardEnd:
        put_forward_end(change.index, change.a);
        break;
      case Change::What::Cache:
        put_cache(change.index, change.a, change.b);
        break;
      case Change::What::Rng:
        put_rng(change.index, change.a);
        break;
      case Change::What::Bump:
        put_bump(change.index, change.bytes);
        break;
      case Change::What::ReplayedAt:
        replayed_at_[change.index] = change.a;
        break;
    }
  }
  log_.clear();
  for (const int s : flipped_) {
    dropped_[s] ^= 1;
  }
  flipped_.clear();
  for (const int c : new_components_) {
    for (const int n : components_[c].nodes) {
      component_of_[n] = -1;
    }
    free_components_.push_back(c);
  }
  new_components_.clear();
  for (const int c : old_components_) {
    for (const int n : components_[c].nodes) {
      component_of_[n] = c;
    }
  }
  old_components_.clear();
  ticks_ = old_ticks_;
}

} // namespace recals::plan
