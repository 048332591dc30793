#pragma once

/// The best plans for all budgets at once: those that no other one equals or beats in everything.

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/plan/incremental.h"
#include "passes/plan/options.h"

namespace recals::plan {

struct Archived {
  std::vector<int64_t> peaks; ///< bytes, per device of the archive
  int64_t cost = 0; ///< IncrementalSimulator::cost
  std::vector<Choice> choices;
  bool is_new = true; ///< see Archive::take_new
};

class Archive {
 public:
  /// `devices`: those whose peaks matter.
  explicit Archive(std::vector<int> devices) : devices_(std::move(devices)), peaks_(devices_.size()) {}

  /// Adds the plan that the simulator is at, unless one that is there has no higher peak and costs no more; what it beats
  /// in this way goes. Returns whether it was added.
  bool add(IncrementalSimulator& step);

  const std::vector<int>& devices() const {
    return devices_;
  }
  /// By cost, ascending.
  const std::vector<Archived>& plans() const {
    return plans_;
  }
  /// The cheapest one that was not taken yet.
  std::optional<std::vector<Choice>> take_new();

  /// Of the plans: keeps what need not be recomputed, and retains from the first replay on what need not be made anew, where
  /// neither cost nor peaks change. The simulator ends anywhere.
  void simplify(IncrementalSimulator& step, const Options& options);

  /// The cheapest one within budgets (bytes, per device of the step); null: there is none. A smaller budget asks a part of
  /// the same plans, so it never has a higher peak on the device that is nearest to its budget, nor a cheaper plan.
  const Archived* cheapest_within(const std::vector<int64_t>& budgets) const;
  /// The one with the smallest peak; of several devices, with as little above what each could have alone as it takes.
  const Archived& smallest() const;

 private:
  bool is_at(IncrementalSimulator& step, const Archived& plan) const;

  std::vector<int> devices_;
  std::vector<Archived> plans_;
  std::vector<int64_t> peaks_; ///< scratch
};

} // namespace recals::plan
