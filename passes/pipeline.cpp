#include "passes/pipeline.h"

#include <algorithm>

#include "passes/boundaries/boundaries.h"
#include "passes/budgets.h"
#include "passes/lower/lower.h"
#include "passes/meta/meta_kernels.h"
#include "passes/plan/pins.h"
#include "passes/plan/plan_json.h"
#include "passes/registry.h"
#include "passes/sizes/device_rules.h"
#include "passes/sizes/older_loss.h"
#include "passes/sizes/profile.h"
#include "runtime/autocast_state.h"
#include "runtime/ops.h"

namespace recals {

using torch::jit::Module;

namespace {

/// Names of the analysis for the sizes of its step under a plan, `program`: values have other names there, and a file does
/// not keep the paths of the modules that the nodes come from.
void take_names(const Analysis& analysis, const Program& program, DryRun& sizes) {
  const auto& named = analysis.sizes.step.nodes;
  auto& step = sizes.step;
  for (size_t n = 0; n < named.size(); ++n) {
    step.nodes[n].module = named[n].module;
    step.nodes[n].where = named[n].where;
  }
  for (size_t s = 0; s < step.storages.size(); ++s) {
    const auto& origin = sizes.origins[s];
    const auto& outputs = program.nodes[origin.node].outputs;
    const auto shown = std::find(outputs.begin(), outputs.end(), origin.reg);
    const size_t position = shown == outputs.end() ? 0 : shown - outputs.begin();
    const auto& registers = analysis.program->nodes[origin.node].outputs;
    auto& name = step.storages[s].name;
    if (position < registers.size()) {
      const size_t suffix = name.find(" saved[");
      name = "%" + analysis.program->registers[registers[position]].name +
          (suffix == std::string::npos ? "" : name.substr(suffix));
    }
  }
}

/// The step of `program` run dry, with the names and times of the analysis.
DryRun sizes_of(const Analysis& analysis, const std::shared_ptr<const Program>& program, const c10::IValue& self) {
  const Loss loss{analysis.loss, analysis.flat.result, analysis.target.device};
  auto sizes = dry_run(program, self, analysis.inputs, analysis.targets, loss);
  // A pass behind the plan may have changed the nodes; they go by their own names and estimates then.
  const bool same_nodes = program->nodes.size() == analysis.program->nodes.size();
  if (program != analysis.program && same_nodes) {
    take_names(analysis, *program, sizes);
  }
  if (!analysis.measured_seconds.empty() && same_nodes) {
    use_measured_seconds(sizes, analysis.measured_seconds);
  }
  return sizes;
}

} // namespace

namespace {

/// With an index, as tensors on it have.
std::optional<c10::Device> planned_device(const TargetOptions& target) {
  if (!target.device) {
    return std::nullopt;
  }
  TORCH_CHECK_VALUE(
      target.device->is_cpu() || target.device->is_cuda(),
      "recals: steps can be planned for the CPU and for CUDA devices, not for '",
      *target.device,
      "', unless module and inputs are there");
  return DeviceTable::with_index(*target.device);
}

} // namespace

Analysis specialise_step(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  c10::InferenceMode no_inference(false); // the step that is analysed is a training step, whoever asks
  Analysis analysis;
  analysis.module = module;
  const auto device = planned_device(options.target);
  analysis.flat = specialise(module._ivalue(), method, inputs, device, &operation_on_meta);
  analysis.target = options.target;
  analysis.loss = options.loss;
  analysis.target.device = device;
  return analysis;
}

void size_step(
    Analysis& analysis,
    const Module& module,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  c10::InferenceMode no_inference(false);
  auto& devices = analysis.flat.devices;
  {
    const MetaKernels kernels(devices); // not around what is measured below
    analysis.twin = meta_twin(module._ivalue(), devices, analysis.target.device);
    analysis.inputs.clear();
    for (const auto& input : analysis.flat.inputs) {
      collect_tensors(input, analysis.inputs);
    }
    analysis.program = compile_for_meta(analysis.flat.graph, devices);
  }
  const auto choice = chosen_cost_model(options.cost_model);
  const bool profile = choice == kProfile;
  analysis.targets = targets_of(devices, profile ? "built-in" : choice, analysis.target.workspace_margin);
  TORCH_CHECK(
      !profile || !analysis.target.device,
      "recals: cost_model=\"profile\" measures the nodes where the module is, which tells nothing of a target device. "
      "Move "
      "module and inputs to ",
      *analysis.target.device,
      ", or take another cost model.");
  analysis.measured_seconds =
      profile ? measure_nodes(analysis.flat.graph, module._ivalue(), inputs) : std::vector<double>();
  analysis.sizes = sizes_of(analysis, analysis.program, analysis.twin.value);
  keep_draws(analysis.sizes, *analysis.program, options.rng);
}

Analysis analyse(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  auto job = job_of(module, method, inputs, options);
  run_pipeline(job, standard_pipeline("sizes"));
  return std::move(*job.analysis);
}

namespace {

std::string at_of(const plan::StepGraph& step, const plan::PeakPoint& point) {
  auto describe = [&](int node) {
    const auto& info = step.nodes.at(node);
    return info.op + (info.module.empty() ? "" : " of " + info.module) +
        (info.where.empty() ? "" : " at " + info.where);
  };
  if (point.replayed_node >= 0) {
    return "the recomputation of " + describe(point.replayed_node);
  }
  if (!point.in_backward) {
    return point.index >= 0 ? describe(point.index) : "the forward";
  }
  const int label = point.index >= 0 ? step.backward.at(point.index).label : -1;
  return label >= 0 ? step.backward_ops.at(label) + " in the backward" : "the backward";
}

std::string exact(int64_t bytes) {
  return plan::human_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

struct Smallest {
  Planned planned;
  std::vector<int64_t> floor; ///< bytes per device that no plan can be below
};

/// `without_pins`: bytes per device of the smallest plan that follows no MUST.
[[noreturn]] void unreachable(
    const plan::StepGraph& step,
    const Smallest& smallest,
    const std::vector<int64_t>& without_pins) {
  const auto& budgets = smallest.planned.budgets;
  const auto& peaks = smallest.planned.peak;
  std::map<std::string, int64_t> works;
  std::map<std::string, int64_t> works_without_pins;
  size_t worst = 0; ///< the device that misses its budget by the largest factor
  double factor = 0;
  for (size_t d = 0; d < budgets.size(); ++d) {
    if (budgets[d] == plan::kNoBudget) {
      continue;
    }
    works[step.devices[d]] = peaks[d];
    works_without_pins[step.devices[d]] = without_pins[d];
    const double over = static_cast<double>(peaks[d]) / static_cast<double>(std::max<int64_t>(budgets[d], 1));
    if (over > factor) {
      factor = over;
      worst = d;
    }
  }
  std::string others;
  for (const auto& [device, bytes] : works) {
    if (device != step.devices[worst]) {
      others += (others.empty() ? ", with " : ", ") + exact(bytes) + " on " + device;
    }
  }
  throw BudgetUnreachable(
      "recals: no plan fits into " + exact(budgets[worst]) + " on " + step.devices[worst] +
          ". The smallest budget that works is " + exact(peaks[worst]) + others + "; what sets it is " +
          at_of(step, smallest.planned.plan.predicted.peak[worst]) + "." +
          (without_pins[worst] < peaks[worst] ? " Without the pins it would be " + exact(without_pins[worst]) + "."
               : peaks[worst] <= smallest.floor[worst] ? " No plan can be below it."
                                                       : ""),
      works,
      works_without_pins);
}

/// The graph under the plan, run dry.
void take_peak(const Analysis& analysis, Planned& planned) {
  planned.sizes = sizes_of(analysis, compile_for_meta(planned.graph, analysis.flat.devices), analysis.twin.value);
  planned.peak = planned.sizes.peak;
  for (size_t d = 0; d < planned.peak.size(); ++d) {
    planned.plan.predicted.peak[d].bytes = planned.sizes.peak[d];
    planned.plan.predicted.held[d] = planned.sizes.held[d];
  }
}

/// The plan in the graph, run dry.
Planned try_out(const Analysis& analysis, plan::Plan plan, const std::vector<int64_t>& budgets) {
  Planned planned;
  planned.budgets = budgets;
  for (const auto& point : plan.predicted.peak) {
    planned.simulated_peak.push_back(point.bytes);
  }
  planned.graph = analysis.flat.graph->copy();
  const auto numbering = compile_for_meta(planned.graph, analysis.flat.devices);
  insert_boundaries(planned.graph, *numbering, analysis.sizes, plan);
  planned.plan = std::move(plan);
  take_peak(analysis, planned);
  return planned;
}

/// The number of the first device that is above its budget.
std::optional<size_t> first_over(const std::vector<int64_t>& peaks, const std::vector<int64_t>& budgets) {
  for (size_t d = 0; d < peaks.size(); ++d) {
    if (peaks[d] > budgets[d]) {
      return d;
    }
  }
  return std::nullopt;
}

/// As little as possible wherever there is a limit, run dry. `planner`: of the analysis' step, or of one with other policies.
Smallest smallest_plan(const Analysis& analysis, plan::Planner& planner, const std::vector<int64_t>& budgets) {
  auto asked = budgets;
  for (auto& budget : asked) {
    budget = budget == plan::kNoBudget ? budget : 0;
  }
  const auto reason = std::get<plan::Infeasible>(planner.choose(asked));
  auto choice = planner.choose(reason.smallest);
  TORCH_CHECK(std::holds_alternative<plan::Plan>(choice), "recals: the smallest plan could not be made");
  Smallest smallest{try_out(analysis, std::move(std::get<plan::Plan>(choice)), budgets), {}};
  for (const auto& point : reason.floor) {
    smallest.floor.push_back(point.bytes);
  }
  return smallest;
}

bool has_must(const plan::StepGraph& step) {
  return std::any_of(step.storages.begin(), step.storages.end(), [](const plan::Storage& storage) {
    return storage.policy == plan::Policy::MustSave || storage.policy == plan::Policy::MustRecompute;
  });
}

std::vector<int64_t> smallest_peaks_without_pins(const Analysis& analysis, const std::vector<int64_t>& budgets) {
  auto free = analysis.sizes.step;
  TORCH_INTERNAL_ASSERT(!plan::set_policies(free, {}));
  plan::Planner planner(free);
  return smallest_plan(analysis, planner, budgets).planned.peak;
}

} // namespace

std::vector<int64_t> peak_run_dry(const Analysis& analysis, std::vector<plan::Choice> choices) {
  const auto& step = analysis.sizes.step;
  const std::vector<int64_t> no_budgets(step.devices.size(), plan::kNoBudget);
  return try_out(analysis, plan::plan_of(step, std::move(choices)), no_budgets).peak;
}

Planned plan_step(const Analysis& analysis, const StepOptions& options) {
  const auto& step = analysis.sizes.step;
  auto budgets = budgets_of(options, step.devices, analysis.sizes.peak, analysis.module);
  plan::Planner planner(step);
  if (std::find(budgets.begin(), budgets.end(), kSmallest) != budgets.end()) {
    // What the error for a budget of nothing would say, so that this number of bytes gives the same plan.
    const auto smallest = smallest_plan(analysis, planner, budgets).planned.peak;
    for (size_t d = 0; d < budgets.size(); ++d) {
      budgets[d] = budgets[d] == kSmallest ? smallest[d] : budgets[d];
    }
  }
  // A plan is run dry before it is trusted. Where the run needs more than the simulator said, the planner is asked again
  // for so much less; the last resort is its smallest plan.
  std::vector<int64_t> asked = budgets;
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto choice = planner.choose(asked);
    auto* plan = std::get_if<plan::Plan>(&choice);
    if (plan == nullptr) {
      break;
    }
    auto planned = try_out(analysis, std::move(*plan), budgets);
    const auto over = first_over(planned.peak, budgets);
    if (!over) {
      return planned;
    }
    for (size_t d = 0; d < budgets.size(); ++d) {
      if (planned.peak[d] > budgets[d]) {
        asked[d] -= planned.peak[d] - budgets[d];
      }
    }
  }
  auto smallest = smallest_plan(analysis, planner, budgets);
  const auto& peaks = smallest.planned.peak;
  if (first_over(peaks, budgets)) {
    unreachable(step, smallest, has_must(step) ? smallest_peaks_without_pins(analysis, budgets) : peaks);
  }
  return std::move(smallest.planned);
}

std::vector<std::string> warnings_of(const Planned& planned) {
  std::vector<std::string> warnings;
  for (size_t d = 0; d < planned.budgets.size(); ++d) {
    const auto overlap = planned.budgets[d] == plan::kNoBudget ? "" : overlap_in_words(planned.sizes, d);
    if (!overlap.empty()) {
      warnings.push_back(
          "recals: " + planned.sizes.step.devices[d] + " may hold more than was planned: " + overlap +
          ", in the backward's threads of two devices. Under torch.autograd.set_multithreading_enabled(False) the plan "
          "holds.");
    }
  }
  return warnings;
}

void measure_again(const Analysis& analysis, Planned& planned) {
  take_peak(analysis, planned);
  if (const auto over = first_over(planned.peak, planned.budgets)) {
    const auto& device = analysis.sizes.step.devices[*over];
    throw BudgetUnreachable(
        "recals: a pass changed the planned graph, which now peaks at " + exact(planned.peak[*over]) + " on " + device +
            ", above the budget of " + exact(planned.budgets[*over]) +
            ". Let the pass run after 'graph', so that the plan is made for what it does.",
        {{device, planned.peak[*over]}},
        {{device, planned.peak[*over]}});
  }
}

Module optimise(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  auto job = job_of(module, method, inputs, options);
  run_pipeline(job, standard_pipeline());
  return job.module;
}

namespace {

/// Eager Python passes a number beside a tensor as a tensor of 8 bytes, which products save; TorchScript passes the number.
/// So many bytes more does the eager module hold, per node.
std::vector<int64_t> bytes_of_numbers(const Program& program, const std::vector<bool>& differentiable) {
  std::vector<int64_t> bytes;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const auto& node = program.nodes[n];
    const auto* schema = node.source == nullptr ? nullptr : node.source->maybeSchema();
    const bool product = schema != nullptr && schema->overload_name() == "Scalar" &&
        (schema->name() == "aten::mul" || schema->name() == "aten::div");
    bytes.push_back(product && differentiable[n] ? 8 : 0);
  }
  return bytes;
}

} // namespace

Report report_of(const Analysis& analysis) {
  if (analysis.flat.devices.number_of(c10::kCPU) < 0) {
    return make_report(analysis.sizes); // the numbers stay on the host
  }
  return make_report(analysis.sizes, bytes_of_numbers(*analysis.program, analysis.sizes.differentiable));
}

Report report_of(const Analysis& analysis, const Planned& planned) {
  auto report = make_report(planned.sizes);
  for (size_t d = 0; d < report.devices.size(); ++d) {
    auto& device = report.devices[d];
    device.plain_peak = analysis.sizes.peak.at(d);
    if (planned.budgets.at(d) != plan::kNoBudget) {
      device.budget = planned.budgets[d];
    }
  }
  return report;
}

Report report_of(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  if (!is_lowered(module)) {
    return report_of(analyse(module, method, inputs, options));
  }
  const auto step = lowered_step(module);
  std::optional<OlderStandIn> older;
  if (step.format < kFirstFormatWithFiveUnits) {
    older.emplace();
  }
  const auto analysis = analyse(restore(module), method, inputs, options);
  if (step.method != method || step.attributes != analysis.flat.attributes) {
    return report_of(analysis); // what a call would run
  }
  const auto& signature = analysis.flat.signature;
  TORCH_CHECK(
      step.signature ==
          (step.format < ops::kFirstFormatWithAutocast ? AutocastState::parse(signature).first : signature),
      "recals: the plan of this module was made for ",
      step.signature,
      ", not for ",
      signature,
      ". Optimise it for these inputs, or estimate recals.restore(module), the plain one.");
  Planned planned;
  planned.budgets = plan::budgets_in(plan_of(module));
  const auto program = compile_for_meta(step.graph, analysis.flat.devices);
  const auto& named = analysis.sizes.step.nodes;
  TORCH_CHECK(
      program->nodes.size() == named.size(),
      "recals: this module was rewritten by another version, which took its step apart differently. Optimise it "
      "again.");
  auto devices = analysis.flat.devices;
  const MetaKernels kernels(devices);
  planned.sizes = sizes_of(analysis, program, meta_twin(module._ivalue(), devices, analysis.target.device).value);
  return report_of(analysis, planned);
}

} // namespace recals
