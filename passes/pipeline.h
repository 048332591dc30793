#pragma once

/// What the passes by name (passes/registry.h) are made of, and the whole way as one call.

#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <torch/csrc/jit/api/module.h>

#include "passes/budgets.h"
#include "passes/graph/specialise.h"
#include "passes/plan/planner.h"
#include "passes/report/report.h"
#include "passes/sizes/dry_run.h"
#include "passes/step_options.h"

namespace recals {

/// Everything that is known about one training step before a plan is made.
struct Analysis {
  torch::jit::Module module; ///< plain
  FlatGraph flat;
  MetaTwin twin;
  std::vector<at::Tensor> inputs; ///< meta
  std::shared_ptr<const Program> program; ///< of `flat`, for meta
  std::vector<double> measured_seconds; ///< per node of `program`, if the nodes were measured
  TargetOptions target;
  LossFunction loss; ///< null: a stand-in
  std::vector<Target> targets; ///< per device of `flat.devices`
  bool measured = false; ///< scratch memory of CPU kernels is measured, where it can be
  DryRun sizes; ///< of the step of `flat.graph`, which plans are made for
  /// The plain step, where it is another: with `flat.in_place` in place.
  struct InPlace {
    std::shared_ptr<const Program> program; ///< for meta
    DryRun sizes;
  };
  std::optional<InPlace> in_place;

  /// Of the plain step.
  const DryRun& plain_sizes() const {
    return in_place ? in_place->sizes : sizes;
  }
};

/// Do the tensors of module and inputs hold data?
bool are_here(const torch::jit::Module& module, const std::vector<c10::IValue>& inputs);

/// passes/graph alone: the graph, without sizes. `inputs`: the arguments of `method` after self. Throws c10::Error for
/// what cannot be analysed, c10::ValueError for a target that there is no planning for.
Analysis specialise_step(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options = {});

/// passes/sizes: fills in the rest for `analysis.flat.graph`.
void size_step(
    Analysis& analysis,
    const torch::jit::Module& module,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options = {});

/// Both, and the passes that users have added behind them.
Analysis analyse(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options = {});

/// No plan fits the budgets.
class BudgetUnreachable : public std::runtime_error {
 public:
  using Bytes = std::map<std::string, int64_t>; ///< per device
  BudgetUnreachable(const std::string& message, Bytes smallest, Bytes smallest_without_pins)
      : std::runtime_error(message),
        smallest(std::move(smallest)),
        smallest_without_pins(std::move(smallest_without_pins)) {}
  Bytes smallest; ///< what would work
  Bytes smallest_without_pins; ///< what would if no pin had to be followed
};

/// What optimise has decided, for reports and tests.
struct Planned {
  plan::Plan plan;
  std::vector<int64_t> budgets; ///< bytes per device
  std::shared_ptr<torch::jit::Graph> graph; ///< the flat graph with boundaries
  std::vector<int64_t> peak; ///< bytes per device, of the dry run under the plan
  std::vector<int64_t> simulated_peak; ///< bytes per device, what the planner's simulator said
  /// Bytes per device by which the plan was made for less than the budget, because plans for all of it were above it when
  /// they were run dry.
  std::vector<int64_t> given_away;
  DryRun sizes; ///< of that run
};

/// Throws BudgetUnreachable, BadBudget.
Planned plan_step(const Analysis& analysis, const StepOptions& options);

/// The plan as JSON (passes/plan/plan_json.h).
std::string json_of(const Analysis& analysis, const Planned& planned);

/// Bytes per device that the analysed step holds at most with these choices (one per storage), run dry.
std::vector<int64_t> peak_run_dry(const Analysis& analysis, std::vector<plan::Choice> choices);

/// Why a device may go over its budget all the same, in words, one text per such device. Empty for a step on one device.
std::vector<std::string> warnings_of(const Planned& planned);

/// Runs `planned.graph` dry again after it was changed, and takes its peak over. Throws BudgetUnreachable if it is now
/// above a budget.
void measure_again(const Analysis& analysis, Planned& planned);

/// The whole way, with the passes that users have added. The module is not changed.
torch::jit::Module optimise(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options);

/// Of the plain step as the eager module runs it.
Report report_of(const Analysis& analysis);
/// Of the step under a plan.
Report report_of(const Analysis& analysis, const Planned& planned);
/// Of the step that a call of `method` with such inputs runs: a rewritten module's own plan, or the plain step. Throws
/// c10::Error for what cannot be analysed, and for inputs of other shapes than a plan was made for.
Report report_of(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options = {});

} // namespace recals
