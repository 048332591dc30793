#include "passes/plan/segments.h"

#include <algorithm>
#include <numeric>

namespace recals::plan {

Cuts::Cuts(const StepIndex& index) : crossing_(index.nodes + 1, 0), saved_(index.nodes + 1, 0) {
  for (int s = 0; s < index.storages; ++s) {
    crossing_[index.producer[s] + 1] += index.bytes[s];
    crossing_[index.last_read[s] + 1] -= index.bytes[s];
    if (index.slots[s] > 0) {
      saved_[index.producer[s] + 1] += static_cast<double>(index.bytes[s]);
    }
  }
  std::partial_sum(crossing_.begin(), crossing_.end(), crossing_.begin());
  std::partial_sum(saved_.begin(), saved_.end(), saved_.begin());
}

std::vector<int> Cuts::of(int begin, int end, int segments, double slack) const {
  std::vector<int> cuts;
  const double total = saved_[end] - saved_[begin];
  int first = begin + 1;
  for (int k = 1; k < segments; ++k) {
    const double low = saved_[begin] + total * (k - slack) / segments;
    const double high = saved_[begin] + total * (k + slack) / segments;
    const auto from = std::lower_bound(saved_.begin() + std::min(first, end), saved_.begin() + end, low);
    int cut = -1;
    for (int n = static_cast<int>(from - saved_.begin()); n < end && saved_[n] <= high; ++n) {
      if (cut < 0 || crossing_[n] < crossing_[cut]) {
        cut = n;
      }
    }
    if (cut >= 0) {
      cuts.push_back(cut);
      first = cut + 1;
    }
  }
  return cuts;
}

std::vector<uint8_t> crossing(const StepIndex& index, const std::vector<int>& cuts) {
  std::vector<uint8_t> result(index.storages, 0);
  for (int s = 0; s < index.storages; ++s) {
    const auto cut = std::upper_bound(cuts.begin(), cuts.end(), index.producer[s]);
    result[s] = cut != cuts.end() && index.last_read[s] >= *cut;
  }
  return result;
}

namespace {

/// For every node, the end of the innermost segment that it is in; for every cut, the end of the segment that it cuts.
class Nest {
 public:
  Nest(const Cuts& cuts, const Nesting& nesting, int nodes) : cuts_(cuts), nesting_(nesting) {
    cut_until.assign(nodes + 1, -1);
    leaf_end.assign(nodes, nodes);
    divide(0, nodes, 0);
  }

  std::vector<int> cut_until; ///< per node: it is a cut within a segment that ends there; -1: no cut below level 0
  std::vector<int> leaf_end;
  std::vector<int> kept; ///< cuts of level 0

 private:
  void divide(int begin, int end, size_t level) {
    std::vector<int> cuts;
    if (level < nesting_.segments.size()) {
      cuts = cuts_.of(begin, end, nesting_.segments[level], nesting_.slack);
    }
    if (level == 0) {
      kept = cuts;
    }
    if (cuts.empty() && (level > 0 || nesting_.segments.empty())) {
      std::fill(leaf_end.begin() + begin, leaf_end.begin() + end, end);
      return;
    }
    cuts.push_back(end);
    for (const int cut : cuts) {
      if (level > 0 && cut < end) {
        cut_until[cut] = end;
      }
      divide(begin, cut, level + 1);
      begin = cut;
    }
  }

  const Cuts& cuts_;
  const Nesting& nesting_;
};

} // namespace

std::vector<Choice> nested(const StepIndex& index, const Options& options, const Cuts& cuts, const Nesting& nesting) {
  const Nest nest(cuts, nesting, index.nodes);
  const std::vector<uint8_t> kept = crossing(index, nest.kept);
  std::vector<int> deeper; // cuts below level 0
  for (int n = 0; n < index.nodes; ++n) {
    if (nest.cut_until[n] >= 0) {
      deeper.push_back(n);
    }
  }
  std::vector<Choice> choices(index.storages, Fate::Keep);
  for (const int s : options.storages) {
    if (!options.allows(s, Fate::Recompute) || (kept[s] && options.allows(s, Fate::Keep))) {
      continue;
    }
    Choice choice = Fate::Recompute;
    choice.cache_from = nest.leaf_end[index.producer[s]];
    for (auto cut = std::upper_bound(deeper.begin(), deeper.end(), index.producer[s]);
         cut != deeper.end() && *cut <= index.last_read[s];
         ++cut) {
      choice.cache_from = std::max(choice.cache_from, nest.cut_until[*cut]);
    }
    if (choice.cache_from >= index.nodes) {
      choice.cache_from = Choice::kAlways;
    }
    choices[s] = choice;
  }
  return choices;
}

} // namespace recals::plan
