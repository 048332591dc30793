#pragma once

/// Local search on one IncrementalSimulator: greedy in both directions, and annealing. Everything is deterministic and
/// bounded by counted work.

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "passes/plan/incremental.h"
#include "passes/plan/options.h"

namespace recals::plan {

constexpr double kForwardTicks = static_cast<double>(int64_t{1} << 50);

struct State {
  std::vector<Choice> choices;
  int64_t cost = 0;
  double violation = 0;

  bool fits() const {
    return violation == 0;
  }
};

State state_of(IncrementalSimulator& step);

/// What fits before what does not; then by cost, or by how little it does not fit.
bool better(const State& a, const State& b);

/// How long to search: `tries` changes at most, and `work` (IncrementalSimulator::work) at most.
struct Effort {
  int64_t tries = 0;
  int64_t work = 0;
};

/// Where annealing begins, in forwards that it would pay to get on. Cold: a good plan is near. Hot: anything goes.
constexpr double kCold = 0.001;
constexpr double kHot = 0.3;
constexpr double kVeryHot = 1;

struct Annealing {
  Effort effort;
  double heat = kCold;
  uint64_t seed = 0;
  bool until_it_fits = false; ///< the first state that fits will do
  std::function<bool()> counts; ///< if set: whether the state that the simulator is in counts
};

class Improver {
 public:
  Improver(const Options& options, IncrementalSimulator& step)
      : options_(options), step_(step), is_small_(options.storages.size() <= kSmall) {}

  /// Called in every state that annealing tries.
  void observe(std::function<void()> visit) {
    visit_ = std::move(visit);
  }

  /// Greedy: changes what lowers the violation most per second, until nothing is above a limit or nothing helps. Only
  /// storages with `frozen` 0, if it is not empty.
  void drop_until_it_fits(const std::vector<uint8_t>& frozen, int64_t work);

  /// Takes back what costs most, as long as all fits.
  void keep_what_fits(int64_t work);

  /// Simulated annealing from where the simulator is, to the best state on the way; the simulator ends anywhere. The
  /// price of what is above the limits moves so that about half of the states fit: the good plans lie at that edge.
  State anneal(const Annealing& how);

 private:
  double violation_change(const Change& change, int64_t& cost_change);
  void pick(std::mt19937_64& random);
  void pick_cache_from(std::mt19937_64& random);
  void pick_cache_from_of_many(std::mt19937_64& random);
  Choice some_choice(int storage, std::mt19937_64& random) const;
  int some_asking_node(int storage, std::mt19937_64& random) const;

  const Options& options_;
  IncrementalSimulator& step_;
  bool is_small_; ///< Note [Small steps]
  std::function<void()> visit_;
  std::vector<Change> changes_;
  bool nested_ = false; ///< the plan that is annealed runs nodes more than once, or may have to
};

} // namespace recals::plan
