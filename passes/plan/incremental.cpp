#include "passes/plan/incremental.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "passes/plan/planner.h"

namespace recals::plan {

void MemoryCurve::Level::resize(size_t count) {
  added.assign(count, 0);
  most.assign(count, 0);
  least.assign(count, 0);
  sum.assign(count, 0);
  moments.assign(count, 0);
  stale.assign(count, 1);
}

void MemoryCurve::Level::add(size_t i, double bytes) {
  added[i] += bytes;
  most[i] += bytes;
  least[i] += bytes;
  sum[i] += bytes * moments[i];
}

MemoryCurve::MemoryCurve(std::vector<double> values, int64_t limit)
    : limit_(limit), size_(values.size()), values_(std::move(values)) {
  const size_t blocks = (size_ + kBlock - 1) / kBlock;
  const size_t groups = (blocks + kBlock - 1) / kBlock;
  blocks_.resize(blocks);
  groups_.resize(groups);
  for (size_t moment = 0; moment < size_; ++moment) {
    ++blocks_.moments[moment / kBlock];
    ++groups_.moments[moment / kBlock / kBlock];
  }
  above_of_.assign(groups, 0);
  dirty_.assign(groups, 0);
  for (size_t group = 0; group < groups; ++group) {
    mark(static_cast<int>(group));
  }
}

void MemoryCurve::add(int begin, int end, double bytes) {
  constexpr int kGroup = kBlock * kBlock;
  while (begin < end) {
    const int group = begin / kGroup;
    const int until = std::min(end, (group + 1) * kGroup);
    mark(group);
    if (begin % kGroup == 0 && until - begin == static_cast<int>(groups_.moments[group])) {
      groups_.add(group, bytes);
    } else {
      add_to_group(group, begin, until, bytes);
    }
    begin = until;
  }
}

void MemoryCurve::add_to_group(int group, int begin, int end, double bytes) {
  groups_.stale[group] = 1;
  const int first = begin / kBlock;
  const int last = (end - 1) / kBlock;
  const auto part = [&](int block, int from, int to) {
    for (int i = from; i < to; ++i) {
      values_[i] += bytes;
    }
    blocks_.stale[block] = 1;
  };
  if (first == last) {
    part(first, begin, end);
    return;
  }
  part(first, begin, (first + 1) * kBlock);
  for (int block = first + 1; block < last; ++block) {
    blocks_.add(block, bytes);
  }
  part(last, last * kBlock, end);
}

void MemoryCurve::set_limit(int64_t limit) {
  limit_ = limit;
  for (size_t group = 0; group < above_of_.size(); ++group) {
    mark(static_cast<int>(group));
  }
}

void MemoryCurve::refresh_block(size_t block) {
  const double* const value = values_.data() + block * kBlock;
  const int count = static_cast<int>(blocks_.moments[block]);
  // Four of each, so that one operation need not wait for another.
  double mosts[4] = {value[0], value[0], value[0], value[0]};
  double leasts[4] = {value[0], value[0], value[0], value[0]};
  double sums[4] = {0, 0, 0, 0};
  const auto take = [&](int i, int k) {
    mosts[k] = std::max(mosts[k], value[i]);
    leasts[k] = std::min(leasts[k], value[i]);
    sums[k] += value[i];
  };
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int k = 0; k < 4; ++k) {
      take(i + k, k);
    }
  }
  for (; i < count; ++i) {
    take(i, 0);
  }
  const double most = std::max(std::max(mosts[0], mosts[1]), std::max(mosts[2], mosts[3]));
  const double least = std::min(std::min(leasts[0], leasts[1]), std::min(leasts[2], leasts[3]));
  const double sum = sums[0] + sums[1] + sums[2] + sums[3];
  const double added = blocks_.added[block];
  blocks_.most[block] = most + added;
  blocks_.least[block] = least + added;
  blocks_.sum[block] = sum + added * blocks_.moments[block];
  blocks_.stale[block] = 0;
}

void MemoryCurve::refresh_group(size_t group) {
  const size_t begin = group * kBlock;
  const size_t end = std::min(begin + kBlock, blocks_.added.size());
  double most = -std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  double sum = 0;
  for (size_t block = begin; block < end; ++block) {
    if (blocks_.stale[block]) {
      refresh_block(block);
    }
    most = std::max(most, blocks_.most[block]);
    least = std::min(least, blocks_.least[block]);
    sum += blocks_.sum[block];
  }
  const double added = groups_.added[group];
  groups_.most[group] = most + added;
  groups_.least[group] = least + added;
  groups_.sum[group] = sum + added * groups_.moments[group];
  groups_.stale[group] = 0;
}

double MemoryCurve::above_of_block(size_t block, double limit) const {
  if (blocks_.most[block] <= limit) {
    return 0;
  }
  if (blocks_.least[block] >= limit) {
    return blocks_.sum[block] - limit * blocks_.moments[block];
  }
  const double* const value = values_.data() + block * kBlock;
  const int count = static_cast<int>(blocks_.moments[block]);
  limit -= blocks_.added[block];
  // Four sums, so that the additions need not wait for each other.
  double sum[4] = {0, 0, 0, 0};
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int k = 0; k < 4; ++k) {
      sum[k] += std::max(0.0, value[i + k] - limit);
    }
  }
  for (; i < count; ++i) {
    sum[0] += std::max(0.0, value[i] - limit);
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

double MemoryCurve::above_of_group(size_t group) const {
  double limit = static_cast<double>(limit_);
  if (groups_.most[group] <= limit) {
    return 0;
  }
  if (groups_.least[group] >= limit) {
    return groups_.sum[group] - limit * groups_.moments[group];
  }
  limit -= groups_.added[group];
  const size_t end = std::min((group + 1) * kBlock, blocks_.added.size());
  double above = 0;
  for (size_t block = group * kBlock; block < end; ++block) {
    above += above_of_block(block, limit);
  }
  return above;
}

void MemoryCurve::refresh() {
  for (const int group : todo_) {
    if (groups_.stale[group]) {
      refresh_group(group);
    }
    const int64_t above = static_cast<int64_t>(above_of_group(group));
    above_ += above - above_of_[group];
    above_of_[group] = above;
    dirty_[group] = 0;
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
  for (const double of_group : groups_.most) {
    most = std::max(most, of_group);
  }
  return static_cast<int64_t>(most);
}

namespace {

int misses_preference(Policy policy, Fate fate) {
  const bool saved = policy == Policy::PreferSave && fate != Fate::Keep;
  const bool recomputed = policy == Policy::PreferRecompute && fate != Fate::Recompute;
  return saved || recomputed ? 1 : 0;
}

} // namespace

IncrementalSimulator::IncrementalSimulator(const StepIndex& index, const std::vector<int64_t>& limits)
    : index_(index), replays_(index, *this) {
  build_moments();

  double total = 0;
  for (const double seconds : index_.seconds) {
    total += seconds;
  }
  for (const std::vector<Pack>& packs : index_.packs) {
    for (const Pack& pack : packs) {
      total += pack.pack_seconds + pack.unpack_seconds;
    }
  }
  // 2^50 ticks for all that there is to do once: sums are exact, and a double holds them.
  seconds_per_tick_ = total > 0 ? total / static_cast<double>(int64_t{1} << 50) : 1;
  for (int n = 0; n < index_.nodes; ++n) {
    ticks_of_.push_back(ticks_for(index_.seconds[n]));
    recipe_ticks_of_.push_back(ticks_for(index_.recipe_seconds[n]));
  }

  const int nodes = index_.nodes;
  const int storages = index_.storages;
  const int elements = nodes + storages;
  choices_.assign(storages, Fate::Keep);
  for (const Policy policy : index_.policy) {
    preferences_missed_ += misses_preference(policy, Fate::Keep);
  }
  forward_end_.assign(storages, 0);
  live_end_.assign(nodes, 0);
  pack_bump_.assign(static_cast<size_t>(nodes) * index_.devices, 0);
  component_of_.assign(elements, -1);
  member_stamp_.assign(elements, 0);
  parent_.assign(elements, 0);
  storage_stamp_.assign(storages, 0);
  node_stamp_.assign(nodes, 0);
  now_.assign(index_.devices, 0);
  most_.assign(index_.devices, 0);
  std::vector<std::vector<int>> slots_of(storages);
  for (size_t slot = 0; slot < index_.slot_storage.size(); ++slot) {
    slots_of[index_.slot_storage[slot]].push_back(static_cast<int>(slot));
  }
  slots_of_.append(slots_of);

  for (int s = 0; s < storages; ++s) {
    forward_end_[s] = forward_end(s);
    std::vector<double>& curve = base_[index_.device[s]];
    for (int m = index_.producer[s] + 1; m < forward_end_[s]; ++m) {
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
  steps_.assign(curves_.size(), std::vector<double>(moments_ + 1, 0));
  stepping_.assign(curves_.size(), {});
}

int64_t IncrementalSimulator::ticks_for(double seconds) const {
  return static_cast<int64_t>(std::llround(seconds / seconds_per_tick_));
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
        if (index_.recomputable[event.target] || !index_.packs[event.target].empty()) {
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

void IncrementalSimulator::set_choices(const std::vector<Choice>& choices) {
  different_.clear();
  for (int s = 0; s < index_.storages; ++s) {
    const Choice choice = index_.possible(s, choices[s]);
    if (choice != choices_[s]) {
      different_.push_back({s, choice});
    }
  }
  change(different_);
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
  int end = index_.freed_at[storage] + 1;
  switch (choices_[storage].fate) {
    case Fate::Recompute:
      break;
    case Fate::Pack:
      end = std::max(end, index_.first_save[storage] + 1);
      break;
    case Fate::Keep: {
      end = std::max(end, release_end_[storage]);
      const int* const readers_end = index_.readers.end(storage);
      for (const int* n = index_.readers.begin(storage); n != readers_end; ++n) {
        if (component_of_[*n] >= 0) {
          end = std::max(end, live_end_[*n]);
        }
      }
      const int* const recipes_end = index_.recipe_readers.end(storage);
      for (const int* n = index_.recipe_readers.begin(storage); n != recipes_end; ++n) {
        if (component_of_[*n] >= 0 && replays_.by_recipe(*n)) {
          end = std::max(end, live_end_[*n]);
        }
      }
      break;
    }
  }
  return end;
}

void IncrementalSimulator::put_choice(int storage, const Choice& choice) {
  preferences_missed_ += misses_preference(index_.policy[storage], choice.fate) -
      misses_preference(index_.policy[storage], choices_[storage].fate);
  choices_[storage] = choice;
  replays_.set_choice(storage, mode_of(index_, storage, choice), choice.cache_from);
}

int IncrementalSimulator::new_component() {
  if (free_components_.empty()) {
    components_.emplace_back();
    gathered_.push_back(0);
    free_components_.push_back(static_cast<int>(components_.size()) - 1);
  }
  const int c = free_components_.back();
  free_components_.pop_back();
  components_[c].elements.clear();
  new_components_.push_back(c);
  return c;
}

/// Puts the elements of a component that is touched into the pool.
void IncrementalSimulator::gather(int component) {
  if (component >= 0 && gathered_[component] != stamp_) {
    gathered_[component] = stamp_;
    old_components_.push_back(component);
    const std::vector<int>& elements = components_[component].elements;
    pool_.insert(pool_.end(), elements.begin(), elements.end());
  }
}

void IncrementalSimulator::member(int element) {
  if (member_stamp_[element] != stamp_) {
    member_stamp_[element] = stamp_;
    members_.push_back(element);
    gather(component_of_[element]);
  }
}

/// `node` is in N now, and so is whatever it needs.
void IncrementalSimulator::need(int node) {
  if (member_stamp_[node] == stamp_) {
    return;
  }
  member(node);
  todo_.assign(1, node);
  while (!todo_.empty()) {
    const int n = todo_.back();
    todo_.pop_back();
    replays_.choose_way(n);
    replays_.for_each_read(n, [&](int s) {
      if (replays_.mode(s) == Mode::Packed) {
        member(index_.nodes + s);
      } else if (needs_producer(replays_.mode(s)) && member_stamp_[index_.producer[s]] != stamp_) {
        member(index_.producer[s]);
        todo_.push_back(index_.producer[s]);
      }
    });
  }
}

void IncrementalSimulator::touch_storage(int storage) {
  if (storage_stamp_[storage] != stamp_) {
    storage_stamp_[storage] = stamp_;
    touched_storages_.push_back(storage);
  }
}

void IncrementalSimulator::change(const std::vector<Change>& changes) {
  ++stamp_;
  free_components_.insert(free_components_.end(), old_components_.begin(), old_components_.end());
  changed_from_.clear();
  added_.clear();
  forward_ends_before_.clear();
  pack_bumps_before_.clear();
  old_components_.clear();
  new_components_.clear();
  old_ticks_ = ticks_;
  pool_.clear();
  members_.clear();
  touched_storages_.clear();
  touched_packs_.clear();

  // Which components change, and which elements there are afterwards. The pool grows while it is read.
  const int nodes = index_.nodes;
  for (const Change& change : changes) {
    const int s = change.storage;
    const Choice before = choices_[s];
    changed_from_.push_back({s, before});
    put_choice(s, index_.possible(s, change.choice));
    gather(component_of_[index_.producer[s]]);
    gather(component_of_[nodes + s]);
    touch_storage(s);
    for (const int* n = index_.readers.begin(s); n != index_.readers.end(s); ++n) {
      gather(component_of_[*n]);
    }
    for (const int* n = index_.recipe_readers.begin(s); n != index_.recipe_readers.end(s); ++n) {
      gather(component_of_[*n]);
    }
    const bool packs = before.fate == Fate::Pack || choices_[s].fate == Fate::Pack;
    if (packs && node_stamp_[index_.first_save[s]] != stamp_) {
      node_stamp_[index_.first_save[s]] = stamp_;
      touched_packs_.push_back(index_.first_save[s]);
    }
  }
  for (const Change& change : changes) {
    const int s = change.storage;
    if (choices_[s].fate == Fate::Pack) {
      member(nodes + s);
    } else if (choices_[s].fate == Fate::Recompute && index_.slots[s] > 0) {
      need(index_.producer[s]);
    }
  }
  for (size_t i = 0; i < pool_.size(); ++i) {
    const int e = pool_[i];
    if (e >= nodes) {
      if (choices_[e - nodes].fate == Fate::Pack) {
        member(e);
      }
      continue;
    }
    for (const int* s = index_.writes.begin(e); s != index_.writes.end(e); ++s) {
      if (choices_[*s].fate == Fate::Recompute && index_.slots[*s] > 0) {
        need(e);
        break;
      }
    }
  }
  std::sort(members_.begin(), members_.end());

  // Elements out of their components.
  for (const int c : old_components_) {
    ticks_ -= components_[c].ticks;
    plan_steps(components_[c], -1);
    for (const int e : components_[c].elements) {
      component_of_[e] = -1;
      if (e < nodes) {
        // The way may have changed: whatever the recipe reads is touched.
        std::for_each(index_.reads.begin(e), index_.reads.end(e), [&](int s) { touch_storage(s); });
        std::for_each(index_.recipe_reads.begin(e), index_.recipe_reads.end(e), [&](int s) { touch_storage(s); });
      }
    }
  }

  // And into new ones.
  const auto root_of = [&](int e) {
    while (parent_[e] != e) {
      parent_[e] = parent_[parent_[e]];
      e = parent_[e];
    }
    return e;
  };
  for (const int e : members_) {
    parent_[e] = e;
  }
  for (const int e : members_) {
    if (e >= nodes) {
      continue;
    }
    replays_.for_each_read(e, [&](int s) {
      touch_storage(s);
      if (needs_producer(replays_.mode(s))) {
        parent_[root_of(index_.producer[s])] = root_of(e);
      } else if (replays_.mode(s) == Mode::Packed) {
        parent_[root_of(nodes + s)] = root_of(e);
      }
    });
  }
  for (const int e : members_) {
    const int root = root_of(e);
    if (component_of_[root] < 0) {
      component_of_[root] = new_component();
    }
    component_of_[e] = component_of_[root];
    components_[component_of_[e]].elements.push_back(e);
  }
  for (const int c : new_components_) {
    play(components_[c]);
    ticks_ += components_[c].ticks;
    plan_steps(components_[c], 1);
  }
  for (const int n : touched_packs_) {
    touch_pack_bump(n);
  }
  for (const int s : touched_storages_) {
    const int end = forward_end(s);
    if (end != forward_end_[s]) {
      forward_ends_before_.push_back({s, forward_end_[s]});
      plan_step(forward_end_[s], index_.device[s], static_cast<double>(index_.bytes[s]));
      plan_step(end, index_.device[s], -static_cast<double>(index_.bytes[s]));
      forward_end_[s] = end;
    }
  }
  apply_steps();
  work_ += 10 + static_cast<int64_t>(pool_.size() + members_.size() + touched_storages_.size());
}

void IncrementalSimulator::plan_step(int moment, int device, double bytes) {
  const int c = curve_of_[device];
  if (c >= 0 && moment < moments_) {
    steps_[c][moment] += bytes;
    stepping_[c].push_back(moment);
  }
}

void IncrementalSimulator::plan_steps(const Component& component, double sign) {
  for (const Step& step : component.steps) {
    plan_step(step.moment, step.device, sign * step.bytes);
  }
}

/// Adds what was planned to the curves; steps that cancel out cost nothing.
void IncrementalSimulator::apply_steps() {
  for (size_t c = 0; c < curves_.size(); ++c) {
    std::vector<int>& stepping = stepping_[c];
    std::vector<double>& steps = steps_[c];
    if (stepping.empty()) {
      continue;
    }
    int begin = 0;
    double sum = 0;
    const auto step_at = [&](int moment) {
      const double step = steps[moment];
      if (step == 0) {
        return;
      }
      steps[moment] = 0;
      if (sum != 0) {
        added_.push_back({static_cast<int>(c), begin, moment, sum});
      }
      begin = moment;
      sum += step;
    };
    const auto [low, high] = std::minmax_element(stepping.begin(), stepping.end());
    const int first = *low;
    const int last = *high;
    if (static_cast<int>(stepping.size()) > (last - first) / 16) {
      for (int moment = first; moment <= last; ++moment) {
        step_at(moment);
      }
      work_ += (last - first) / 16;
    } else {
      std::sort(stepping.begin(), stepping.end());
      for (const int moment : stepping) {
        step_at(moment);
      }
    }
    if (sum != 0) {
      added_.push_back({static_cast<int>(c), begin, moments_, sum});
    }
    work_ += static_cast<int64_t>(stepping.size());
    stepping.clear();
  }
  for (const RangeAdded& range : added_) {
    curves_[range.curve].add(range.begin, range.end, range.bytes);
    work_ += 2 + (range.end - range.begin) / 1024;
  }
}

/// While its node runs nothing of what packing holds is in the curve, so the moment gets it all.
void IncrementalSimulator::touch_pack_bump(int node) {
  std::fill(now_.begin(), now_.end(), 0);
  std::fill(most_.begin(), most_.end(), 0);
  for (const int* s = index_.writes.begin(node); s != index_.writes.end(node); ++s) {
    now_[index_.device[*s]] += static_cast<double>(index_.bytes[*s]);
  }
  for (int d = 0; d < index_.devices; ++d) {
    const double transient = static_cast<double>(index_.transient[static_cast<size_t>(node) * index_.devices + d]);
    most_[d] = -std::max(transient, now_[d]); // what the moment has anyway
  }
  std::vector<double>& anyway = most_;
  for (int d = 0; d < index_.devices; ++d) {
    double more = 0;
    double live = now_[d];
    for (const int* s = index_.saved_first.begin(node); s != index_.saved_first.end(node); ++s) {
      if (index_.device[*s] == d && choices_[*s].fate == Fate::Pack) {
        const Pack& pack = pack_of(*s);
        more = std::max(more, live + static_cast<double>(std::max(pack.pack_transient, pack.bytes)) + anyway[d]);
        live += static_cast<double>(pack.bytes);
      }
    }
    const int index = node * index_.devices + d;
    if (more != pack_bump_[index]) {
      pack_bumps_before_.push_back({index, pack_bump_[index]});
      plan_step(node, d, more - pack_bump_[index]);
      plan_step(node + 1, d, pack_bump_[index] - more);
      pack_bump_[index] = more;
    }
  }
}

/// Plays the backward of one component, alone.
void IncrementalSimulator::play(Component& component) {
  const int nodes = index_.nodes;
  playing_ = &component;
  component.steps.clear();
  component.live_end.clear();
  component.ticks = 0;
  events_.clear();
  const auto take_slots = [&](int s) {
    events_.insert(events_.end(), events_of_.begin(s), events_of_.end(s));
    std::for_each(slots_of_.begin(s), slots_of_.end(s), [&](int slot) { replays_.reset_slot(slot); });
  };
  for (const int e : component.elements) {
    if (e >= nodes) {
      const int s = e - nodes;
      const Pack& pack = pack_of(s);
      replays_.reset(s);
      take_slots(s);
      component.ticks += ticks_for(pack.pack_seconds);
      component.steps.push_back({index_.first_save[s] + 1, index_.device[s], static_cast<double>(pack.bytes)});
      continue;
    }
    live_end_[e] = moments_;
    for (const int* s = index_.writes.begin(e); s != index_.writes.end(e); ++s) {
      if (needs_producer(replays_.mode(*s))) {
        replays_.reset(*s);
        if (replays_.mode(*s) == Mode::Dropped) {
          take_slots(*s);
        }
      }
    }
    if (!replays_.by_recipe(e) && index_.rng_bytes[e] > 0 && index_.rng_device[e] >= 0) {
      component.steps.push_back({e, index_.rng_device[e], static_cast<double>(index_.rng_bytes[e])});
    }
  }
  for (const int e : component.elements) {
    if (e < nodes) {
      replays_.expect(e);
    }
  }
  for (const int e : component.elements) {
    if (e < nodes) {
      replays_.begin(e);
    }
  }
  std::sort(events_.begin(), events_.end());

  for (const int e : events_) {
    const StepIndex::Event& event = index_.backward[e];
    moment_ = position_[e];
    if (event.kind == BackwardEvent::Kind::Release) {
      in_use_event_ = false;
      replays_.release(event.slot);
      continue;
    }
    in_use_event_ = true;
    std::fill(now_.begin(), now_.end(), 0);
    std::fill(most_.begin(), most_.end(), 0);
    replays_.use(event.slot);
    for (int d = 0; d < index_.devices; ++d) {
      if (most_[d] != 0) {
        component.steps.push_back({moment_, d, most_[d]});
      }
      if (now_[d] != most_[d]) {
        component.steps.push_back({moment_ + 1, d, now_[d] - most_[d]});
      }
    }
  }
  work_ += static_cast<int64_t>(3 * component.elements.size() + events_.size());
  for (const int e : component.elements) {
    if (e < nodes) {
      component.live_end.push_back(live_end_[e]);
    }
  }
}

void IncrementalSimulator::node_runs(int n, bool by_recipe) {
  work_ += 4;
  playing_->ticks += by_recipe ? recipe_ticks_of_[n] : ticks_of_[n];
  const std::vector<int64_t>& transient = by_recipe ? index_.recipe_transient : index_.transient;
  for (int d = 0; d < index_.devices; ++d) {
    const int64_t rng = !by_recipe && d == index_.rng_device[n] ? index_.rng_bytes[n] : 0;
    const int64_t bytes = transient[static_cast<size_t>(n) * index_.devices + d] + rng;
    most_[d] = std::max(most_[d], now_[d] + static_cast<double>(bytes));
  }
}

void IncrementalSimulator::unpack_runs(int s, int /*reader*/) {
  const Pack& pack = pack_of(s);
  const int d = index_.device[s];
  playing_->ticks += ticks_for(pack.unpack_seconds);
  most_[d] = std::max(most_[d], now_[d] + static_cast<double>(pack.unpack_transient));
}

void IncrementalSimulator::made(int s) {
  const int d = index_.device[s];
  now_[d] += static_cast<double>(index_.bytes[s]);
  most_[d] = std::max(most_[d], now_[d]);
}

void IncrementalSimulator::gone(int s) {
  const double bytes = static_cast<double>(index_.bytes[s]);
  if (in_use_event_) {
    now_[index_.device[s]] -= bytes;
  } else {
    playing_->steps.push_back({moment_, index_.device[s], -bytes});
  }
}

void IncrementalSimulator::node_dies(int n) {
  live_end_[n] = moment_;
  if (!replays_.by_recipe(n) && index_.rng_bytes[n] > 0 && index_.rng_device[n] >= 0) {
    playing_->steps.push_back({moment_, index_.rng_device[n], -static_cast<double>(index_.rng_bytes[n])});
  }
}

void IncrementalSimulator::form_goes(int s) {
  playing_->steps.push_back({moment_, index_.device[s], -static_cast<double>(pack_of(s).bytes)});
}

void IncrementalSimulator::undo() {
  for (const RangeAdded& range : added_) {
    curves_[range.curve].add(range.begin, range.end, -range.bytes);
  }
  added_.clear();
  for (const Before& before : forward_ends_before_) {
    forward_end_[before.index] = before.value;
  }
  forward_ends_before_.clear();
  for (const BumpBefore& before : pack_bumps_before_) {
    pack_bump_[before.index] = before.value;
  }
  pack_bumps_before_.clear();
  for (const Change& change : changed_from_) {
    put_choice(change.storage, change.choice);
  }
  changed_from_.clear();
  for (const int c : new_components_) {
    for (const int e : components_[c].elements) {
      component_of_[e] = -1;
    }
    free_components_.push_back(c);
  }
  new_components_.clear();
  for (const int c : old_components_) {
    const Component& component = components_[c];
    for (size_t i = 0; i < component.elements.size(); ++i) {
      const int e = component.elements[i];
      component_of_[e] = c;
      if (e < index_.nodes) {
        live_end_[e] = component.live_end[i];
        replays_.choose_way(e);
      }
    }
  }
  old_components_.clear();
  ticks_ = old_ticks_;
}

} // namespace recals::plan
