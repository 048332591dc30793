#include "passes/pipeline.h"

#include <algorithm>

#include "passes/boundaries/boundaries.h"
#include "passes/lower/lower.h"
#include "passes/meta/meta_kernels.h"
#include "passes/plan/pins.h"
#include "passes/plan/plan_json.h"
#include "passes/registry.h"
#include "passes/sizes/device_rules.h"
#include "passes/sizes/profile.h"

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
  auto sizes = dry_run(program, self, analysis.inputs, analysis.target, analysis.cost_model);
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
      "'");
  return target_of(*target.device, target).device;
}

} // namespace

Analysis specialise_step(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  c10::InferenceMode no_inference(false); // the step that is analysed is a training step, whoever asks
  Analysis analysis;
  analysis.flat = specialise(module._ivalue(), method, inputs, planned_device(options.target));
  analysis.target = target_of(analysis.flat.device, options.target);
  analysis.has_target = options.target.device.has_value();
  return analysis;
}

void size_step(
    Analysis& analysis,
    const Module& module,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options) {
  c10::InferenceMode no_inference(false);
  {
    const MetaKernels kernels; // not around what is measured below
    analysis.twin = meta_twin(module._ivalue());
    analysis.inputs.clear();
    for (const auto& input : analysis.flat.inputs) {
      collect_tensors(input, analysis.inputs);
    }
    analysis.program = compile_for_meta(analysis.flat.graph, analysis.target.device.type());
  }
  const auto choice = chosen_cost_model(options.cost_model);
  const bool profile = choice == kProfile;
  analysis.cost_model = cost_model_for(profile ? "built-in" : choice, analysis.target.name());
  TORCH_CHECK(
      !profile || !analysis.has_target,
      "recals: cost_model=\"profile\" measures the nodes where the module is, which tells nothing of a target device. "
      "Move "
      "module and inputs to ",
      analysis.target.name(),
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

std::vector<int64_t> budgets_of(
    const plan::StepGraph& step,
    const std::map<std::string, plan::Limit>& limits,
    int64_t plain_peak) {
  std::vector<int64_t> budgets(step.devices.size(), plan::kNoBudget);
  for (const auto& [name, limit] : limits) {
    if (name.empty()) {
      budgets.assign(budgets.size(), plan::bytes_of(limit, plain_peak));
      continue;
    }
    auto device = std::find(step.devices.begin(), step.devices.end(), name);
    if (device == step.devices.end()) {
      throw BadBudget(
          "recals: there is a budget for '" + name + "', but the step runs on " + c10::Join(", ", step.devices));
    }
    budgets[device - step.devices.begin()] = plan::bytes_of(limit, plain_peak);
  }
  return budgets;
}

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

[[noreturn]] void unreachable(
    const plan::StepGraph& step,
    const plan::Infeasible& reason,
    const std::vector<int64_t>& budgets,
    int64_t smallest,
    int64_t without_pins) {
  const auto& device = step.devices.at(reason.device);
  const auto exact = [](int64_t bytes) { return plan::human_bytes(bytes) + " (" + std::to_string(bytes) + " bytes)"; };
  throw BudgetUnreachable(
      "recals: no plan fits into " + exact(budgets[reason.device]) + " on " + device +
          ". The smallest budget that works is " + exact(smallest) + "; what sets it is " + at_of(step, reason.at) +
          "." + (without_pins < smallest ? " Without the pins it would be " + exact(without_pins) + "." : ""),
      {{device, smallest}},
      {{device, without_pins}});
}

/// The graph under the plan, run dry.
void take_peak(const Analysis& analysis, Planned& planned) {
  planned.sizes =
      sizes_of(analysis, compile_for_meta(planned.graph, analysis.target.device.type()), analysis.twin.value);
  planned.peak = planned.sizes.peak;
  planned.plan.predicted.peak[0].bytes = planned.sizes.peak;
  planned.plan.predicted.held[0] = planned.sizes.held;
}

/// The plan in the graph, run dry.
Planned try_out(const Analysis& analysis, plan::Plan plan, const std::vector<int64_t>& budgets) {
  Planned planned;
  planned.budgets = budgets;
  planned.simulated_peak = plan.predicted.peak[0].bytes;
  planned.graph = analysis.flat.graph->copy();
  const auto numbering = compile_for_meta(planned.graph, analysis.target.device.type());
  insert_boundaries(planned.graph, *numbering, analysis.sizes, plan);
  planned.plan = std::move(plan);
  take_peak(analysis, planned);
  return planned;
}

} // namespace

namespace {

struct Smallest {
  Planned planned;
  plan::Infeasible reason; ///< what sets its peak
};

/// As little as possible wherever there is a budget. `step`: that of the analysis, or with other policies.
Smallest smallest_plan(const Analysis& analysis, const plan::StepGraph& step, const std::vector<int64_t>& budgets) {
  const auto nothing = plan::choose(step, std::vector<int64_t>(budgets.size(), 0));
  auto reason = std::get<plan::Infeasible>(nothing);
  auto choice = plan::choose(step, reason.smallest);
  TORCH_CHECK(std::holds_alternative<plan::Plan>(choice), "recals: the smallest plan could not be made");
  return {try_out(analysis, std::move(std::get<plan::Plan>(choice)), budgets), std::move(reason)};
}

bool has_must(const plan::StepGraph& step) {
  return std::any_of(step.storages.begin(), step.storages.end(), [](const plan::Storage& storage) {
    return storage.policy == plan::Policy::MustSave || storage.policy == plan::Policy::MustRecompute;
  });
}

int64_t smallest_peak_without_pins(const Analysis& analysis, const std::vector<int64_t>& budgets) {
  auto free = analysis.sizes.step;
  TORCH_INTERNAL_ASSERT(!plan::set_policies(free, {}));
  return smallest_plan(analysis, free, budgets).planned.peak;
}

} // namespace

Planned plan_step(const Analysis& analysis, const StepOptions& options) {
  const auto& step = analysis.sizes.step;
  const auto budgets = budgets_of(step, options.limits, analysis.sizes.peak);
  // A plan is run dry before it is trusted. Where the run needs more than the simulator said, the planner is asked again
  // for so much less; the last resort is its smallest plan.
  std::vector<int64_t> asked = budgets;
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto choice = plan::choose(step, asked);
    auto* plan = std::get_if<plan::Plan>(&choice);
    if (plan == nullptr) {
      break;
    }
    auto planned = try_out(analysis, std::move(*plan), budgets);
    if (planned.peak <= budgets[0]) {
      return planned;
    }
    asked[0] -= std::max<int64_t>(planned.peak - budgets[0], 1);
  }
  auto smallest = smallest_plan(analysis, step, budgets);
  if (smallest.planned.peak > budgets[0]) {
    const auto peak = smallest.planned.peak;
    const auto without_pins = has_must(step) ? smallest_peak_without_pins(analysis, budgets) : peak;
    unreachable(step, smallest.reason, budgets, peak, without_pins);
  }
  return std::move(smallest.planned);
}

void measure_again(const Analysis& analysis, Planned& planned) {
  take_peak(analysis, planned);
  if (planned.peak > planned.budgets[0]) {
    const auto& device = analysis.sizes.step.devices[0];
    throw BudgetUnreachable(
        "recals: a pass changed the planned graph, which now peaks at " + plan::human_bytes(planned.peak) + " (" +
            std::to_string(planned.peak) + " bytes) on " + device + ", above the budget of " +
            plan::human_bytes(planned.budgets[0]) + " (" + std::to_string(planned.budgets[0]) +
            " bytes). Let the pass run after 'graph', so that the plan is made for what it does.",
        {{device, planned.peak}},
        {{device, planned.peak}});
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
  if (!analysis.target.device.is_cpu()) {
    return make_report(analysis.sizes); // the number stays on the host
  }
  return make_report(analysis.sizes, bytes_of_numbers(*analysis.program, analysis.sizes.differentiable));
}

Report report_of(const Analysis& analysis, const Planned& planned) {
  auto report = make_report(planned.sizes);
  for (size_t d = 0; d < report.devices.size(); ++d) {
    auto& device = report.devices[d];
    device.plain_peak = analysis.sizes.peak;
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
  const auto analysis = analyse(restore(module), method, inputs, options);
  const auto step = lowered_step(module);
  if (step.method != method || step.attributes != analysis.flat.attributes) {
    return report_of(analysis); // what a call would run
  }
  TORCH_CHECK(
      step.signature == analysis.flat.signature,
      "recals: the plan of this module was made for ",
      step.signature,
      ", not for ",
      analysis.flat.signature,
      ". Optimise it for these inputs, or estimate recals.restore(module), the plain one.");
  Planned planned;
  planned.budgets = plan::budgets_in(plan_of(module));
  const auto program = compile_for_meta(step.graph, analysis.target.device.type());
  const auto& named = analysis.sizes.step.nodes;
  TORCH_CHECK(
      program->nodes.size() == named.size(),
      "recals: this module was rewritten by another version, which took its step apart differently. Optimise it "
      "again.");
  planned.sizes = sizes_of(analysis, program, meta_twin(module._ivalue()).value);
  return report_of(analysis, planned);
}

} // namespace recals
