#include "passes/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace recals::plan {
namespace {

class Search {
 public:
  Search(const StepGraph& graph, Simulator& simulator, const std::vector<int64_t>& budgets)
      : simulator_(simulator), index_(simulator.index()), budgets_(budgets) {
    first_use_.assign(index_.storages, std::numeric_limits<int>::max());
    last_release_.assign(index_.storages, std::numeric_limits<int>::max());
    for (int e = 0; e < static_cast<int>(graph.backward.size()); ++e) {
      const StepIndex::Event& event = index_.backward[e];
      if (event.kind == BackwardEvent::Kind::Use) {
        first_use_[event.target] = std::min(first_use_[event.target], e);
      } else if (event.kind == BackwardEvent::Kind::Release) {
        last_release_[event.target] = e;
      }
    }
  }

  Found run() {
    Found best;
    double best_seconds = std::numeric_limits<double>::infinity();
    double best_excess = std::numeric_limits<double>::infinity();
    for (const int segments : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}) {
      protected_ = cut(segments);
      for (const bool all : {false, true}) {
        std::vector<Fate> fates = start(all);
        descend(fates);
        if (within()) {
          clean_up(fates);
          simulator_.run(fates);
          if (simulator_.recompute_seconds() < best_seconds) {
            best_seconds = simulator_.recompute_seconds();
            best = {true, fates};
          }
        } else if (!best.fits && excess() < best_excess) {
          best_excess = excess();
          best = {false, fates};
        }
      }
    }
    return best;
  }

 private:
  bool droppable(int s) const {
    return index_.recomputable[s] && !index_.stays[s];
  }
  bool within() const {
    return excess() <= 1;
  }
  double excess() const {
    double worst = 0;
    for (int d = 0; d < index_.devices; ++d) {
      worst = std::max(worst, static_cast<double>(simulator_.peak()[d].bytes) / std::max<double>(budgets_[d], 1e-9));
    }
    return worst;
  }

  /// Storages that cross one of the cuts between `segments` parts of the forward.
  std::vector<uint8_t> cut(int segments) const {
    std::vector<int64_t> crossing(index_.nodes + 1, 0);
    std::vector<double> weight(index_.nodes + 1, 0);
    for (int s = 0; s < index_.storages; ++s) {
      crossing[index_.producer[s] + 1] += index_.bytes[s];
      crossing[index_.last_read[s] + 1 <= index_.nodes ? index_.last_read[s] : index_.nodes] -= 0;
      if (index_.slots[s] > 0) {
        weight[index_.producer[s]] += static_cast<double>(index_.bytes[s]);
      }
    }
    // crossing[n]: bytes made before node n and read by it or later.
    std::fill(crossing.begin(), crossing.end(), 0);
    for (int s = 0; s < index_.storages; ++s) {
      if (index_.last_read[s] > index_.producer[s]) {
        crossing[index_.producer[s] + 1] += index_.bytes[s];
        crossing[index_.last_read[s] + 1 > index_.nodes ? index_.nodes : index_.last_read[s] + 1] -= index_.bytes[s];
      }
    }
    for (int n = 1; n <= index_.nodes; ++n) {
      crossing[n] += crossing[n - 1];
    }
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    std::vector<uint8_t> crosses(index_.storages, 0);
    for (int k = 1; k < segments; ++k) {
      const double low = total * (k - 0.4) / segments;
      const double high = total * (k + 0.4) / segments;
      double so_far = 0;
      int best = -1;
      for (int n = 1; n < index_.nodes; ++n) {
        so_far += weight[n - 1];
        if (so_far >= low && so_far <= high && (best < 0 || crossing[n] < crossing[best])) {
          best = n;
        }
      }
      for (int s = 0; best > 0 && s < index_.storages; ++s) {
        crosses[s] |= index_.producer[s] < best && index_.last_read[s] >= best;
      }
    }
    return crosses;
  }

  std::vector<Fate> start(bool all) const {
    std::vector<Fate> fates(index_.storages, Fate::Keep);
    for (int s = 0; s < index_.storages; ++s) {
      if (droppable(s) && !protected_[s] && (all || index_.slots[s] == 0)) {
        fates[s] = Fate::Recompute;
      }
    }
    return fates;
  }

  /// Seconds that dropping s adds.
  double marginal(int s, const std::vector<Fate>& fates) {
    double seconds = 0;
    stack_ = {index_.producer[s]};
    visited_.assign(index_.nodes, 0);
    while (!stack_.empty()) {
      const int n = stack_.back();
      stack_.pop_back();
      if (visited_[n] || simulator_.replays(n)) {
        continue;
      }
      visited_[n] = 1;
      seconds += index_.seconds[n];
      for (const int* r = index_.reads.begin(n); r != index_.reads.end(n); ++r) {
        if (fates[*r] == Fate::Recompute && index_.recomputable[*r]) {
          stack_.push_back(index_.producer[*r]);
        }
      }
    }
    return seconds;
  }

  void descend(std::vector<Fate>& fates) {
    for (;;) {
      simulator_.run(fates);
      int device = -1;
      double worst = 1;
      for (int d = 0; d < index_.devices; ++d) {
        const double ratio = static_cast<double>(simulator_.peak()[d].bytes) / std::max<double>(budgets_[d], 1e-9);
        if (ratio > worst) {
          worst = ratio;
          device = d;
        }
      }
      if (device < 0) {
        return;
      }
      const PeakPoint at = simulator_.peak()[device];
      std::vector<std::pair<double, int>> order;
      for (int s = 0; s < index_.storages; ++s) {
        if (!droppable(s) || fates[s] == Fate::Recompute || index_.slots[s] == 0 || protected_[s] ||
            index_.device[s] != device || index_.bytes[s] == 0) {
          continue;
        }
        const bool idle = at.in_backward ? first_use_[s] > at.index && last_release_[s] > at.index
                                         : index_.last_read[s] < at.index;
        if (idle) {
          order.emplace_back(marginal(s, fates) / static_cast<double>(index_.bytes[s]), s);
        }
      }
      if (order.empty()) {
        return;
      }
      std::sort(order.begin(), order.end());
      int64_t want = (at.bytes - budgets_[device]) / 4;
      for (const auto& [cost, s] : order) {
        fates[s] = Fate::Recompute;
        want -= index_.bytes[s];
        if (want <= 0) {
          break;
        }
      }
    }
  }

  void clean_up(std::vector<Fate>& fates) {
    std::vector<int> order;
    for (int s = 0; s < index_.storages; ++s) {
      if (fates[s] == Fate::Recompute) {
        order.push_back(s);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return index_.seconds[index_.producer[a]] > index_.seconds[index_.producer[b]];
    });
    simulator_.run(fates);
    double seconds = simulator_.recompute_seconds();
    for (const int s : order) {
      fates[s] = Fate::Keep;
      if (simulator_.fits(fates, budgets_, seconds)) {
        seconds = simulator_.recompute_seconds();
      } else {
        fates[s] = Fate::Recompute;
      }
    }
  }

  Simulator& simulator_;
  const StepIndex& index_;
  const std::vector<int64_t>& budgets_;
  std::vector<int> first_use_;
  std::vector<int> last_release_;
  std::vector<uint8_t> protected_;
  std::vector<int> stack_;
  std::vector<uint8_t> visited_;
};

} // namespace

Found search(const StepGraph& graph, Simulator& simulator, const std::vector<int64_t>& budgets) {
  return Search(graph, simulator, budgets).run();
}

} // namespace recals::plan
