#include "passes/plan/chain.h"

#include <algorithm>
#include <cmath>

namespace recals::plan {

Chain::Chain(const StepIndex& index, const Options& options, const Cuts& cuts, int device, int most_stages)
    : index_(index), options_(options) {
  cut(cuts, most_stages);
  measure(device);
  fill();
}

void Chain::cut(const Cuts& cuts, int most_stages) {
  begin_.assign(1, 0);
  if (index_.nodes <= most_stages) {
    for (int n = 1; n < index_.nodes; ++n) {
      begin_.push_back(n);
    }
  } else {
    const std::vector<int> at = cuts.of(0, index_.nodes, most_stages, 0.4);
    begin_.insert(begin_.end(), at.begin(), at.end());
  }
  stages_ = static_cast<int>(begin_.size());
  begin_.push_back(index_.nodes);
  for (int i = 0; i < stages_; ++i) {
    stage_of_.insert(stage_of_.end(), begin_[i + 1] - begin_[i], i);
  }
}

void Chain::measure(int device) {
  seconds_.assign(stages_ + 1, 0);
  std::vector<int64_t> saved(stages_, 0);
  std::vector<int64_t> backward(stages_, 0);
  for (int n = 0; n < index_.nodes; ++n) {
    seconds_[stage_of_[n] + 1] += index_.seconds[n];
  }
  for (int i = 0; i < stages_; ++i) {
    seconds_[i + 1] += seconds_[i];
  }
  const auto of_device = [&](int s) { return index_.device[s] == device; };
  std::vector<int64_t> crossing(static_cast<size_t>(stages_) * (stages_ + 1), 0);
  int64_t all_saved = 0;
  for (int s = 0; s < index_.storages; ++s) {
    if (!of_device(s)) {
      continue;
    }
    const int made = stage_of_[index_.producer[s]];
    const int read = stage_of_[index_.last_read[s]];
    if (index_.slots[s] > 0 || read > made) {
      saved[made] += index_.bytes[s];
      all_saved += index_.bytes[s];
    }
    for (int k = made + 1; k <= read; ++k) {
      crossing[static_cast<size_t>(made) * (stages_ + 1) + k] += index_.bytes[s];
    }
  }
  for (int k = 0; k <= stages_; ++k) {
    for (int i = std::min(k, stages_) - 2; i >= 0; --i) {
      crossing[static_cast<size_t>(i) * (stages_ + 1) + k] += crossing[static_cast<size_t>(i + 1) * (stages_ + 1) + k];
    }
  }
  // What a later stage saved is gone when the backward comes to the stage that made it.
  std::vector<int64_t> own(stages_, 0);
  std::vector<uint8_t> counted(index_.storages, 0);
  for (size_t slot = 0; slot < index_.slot_storage.size(); ++slot) {
    const int s = index_.slot_storage[slot];
    const int stage = stage_of_[index_.slot_node[slot]];
    if (of_device(s) && !counted[s] && stage == stage_of_[index_.producer[s]]) {
      counted[s] = 1;
      own[stage] += index_.bytes[s];
    }
  }
  // The backward is at the stage of the node whose slot was used last.
  int64_t live = 0;
  int stage = stages_ - 1;
  for (const StepIndex::Event& event : index_.backward) {
    switch (event.kind) {
      case BackwardEvent::Kind::Use:
        stage = stage_of_[index_.slot_node[event.slot]];
        backward[stage] = std::max(backward[stage], live);
        break;
      case BackwardEvent::Kind::Release:
        break;
      case BackwardEvent::Kind::Change:
      case BackwardEvent::Kind::Peak:
        if (event.target == device) {
          backward[stage] = std::max(backward[stage], live + event.bytes);
          live += event.kind == BackwardEvent::Kind::Change ? event.bytes : 0;
        }
        break;
    }
  }
  const int64_t most = all_saved + *std::max_element(backward.begin(), backward.end());
  unit_ = std::max<int64_t>(1, (most + kMemory - 1) / kMemory);
  for (int i = 0; i < stages_; ++i) {
    saved_.push_back(in_steps(saved[i]));
    backward_.push_back(in_steps(backward[i] + own[i]));
  }
  for (const int64_t bytes : crossing) {
    crossing_.push_back(in_steps(bytes));
  }
}

/// Rounded to nearest: the plan is a start, and what is wrong by half a step either way adds up to little.
int Chain::in_steps(int64_t bytes) const {
  return static_cast<int>((bytes + unit_ / 2) / unit_);
}

void Chain::fill() {
  cells_.assign(static_cast<size_t>(stages_) * stages_ * (kMemory + 1), {});
  for (int length = 1; length <= stages_; ++length) {
    for (int i = 0; i + length <= stages_; ++i) {
      const int j = i + length - 1;
      Cell* const cells = &cell(i, j, 0);
      const int saved = saved_[i];
      for (int m = std::max(length == 1 ? 0 : saved, backward_[i]); m <= kMemory; ++m) {
        if (length == 1) {
          cells[m] = {0, 0};
        } else {
          cells[m] = {cell(i + 1, j, m - saved).extra, 0};
        }
      }
      for (int k = i + 1; k <= j; ++k) {
        const float again = static_cast<float>(seconds_[k] - seconds_[i]);
        const int checkpoint = crossing(i, k);
        const Cell* const left = &cell(i, k - 1, 0);
        const Cell* const right = &cell(k, j, 0) - checkpoint;
        for (int m = checkpoint; m <= kMemory; ++m) {
          const float extra = right[m].extra + again + left[m].extra;
          if (extra < cells[m].extra) {
            cells[m] = {extra, k};
          }
        }
      }
    }
  }
}

void Chain::put(int storage, bool keep, int cache_from, std::vector<Choice>& choices) const {
  Choice choice = Fate::Keep;
  if (options_.allows(storage, Fate::Recompute) && !(keep && options_.allows(storage, Fate::Keep))) {
    choice = Fate::Recompute;
    choice.cache_from = cache_from >= index_.nodes ? Choice::kAlways : cache_from;
  }
  choices[storage] = choice;
}

/// What the first run of the stages i..j (`first`) or a later one leaves behind: it is asked for by `end`, or by a node
/// before it.
void Chain::follow(int i, int j, int memory, bool first, int end, std::vector<Choice>& choices) const {
  while (i <= j) {
    const Cell& now = cell(i, j, memory);
    const int next = now.split == 0 ? i + 1 : now.split;
    for (int n = begin_[i]; n < begin_[next]; ++n) {
      for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
        if (now.split == 0 || index_.last_read[*s] >= begin_[next]) {
          put(*s, first, end, choices);
        }
      }
    }
    if (now.split > 0) {
      follow(i, next - 1, memory, false, begin_[next], choices);
      // What crosses is a checkpoint of this run, whatever the runs before it do with it.
      for (int n = begin_[i]; n < begin_[next]; ++n) {
        for (const int* s = index_.writes.begin(n); s != index_.writes.end(n); ++s) {
          if (index_.last_read[*s] >= begin_[next]) {
            put(*s, first, end, choices);
          }
        }
      }
      memory -= crossing(i, next);
    } else {
      memory -= saved_[i];
    }
    i = next;
  }
}

std::vector<Choice> Chain::plan(int64_t bytes) const {
  const int memory = static_cast<int>(std::min<int64_t>(bytes / unit_, kMemory));
  if (stages_ == 0 || memory < 0 || cell(0, stages_ - 1, memory).extra >= kImpossible) {
    return {};
  }
  std::vector<Choice> choices(index_.storages, Fate::Keep);
  follow(0, stages_ - 1, memory, true, index_.nodes, choices);
  return choices;
}

} // namespace recals::plan
