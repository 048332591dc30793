#include "passes/pipeline.h"

#include <algorithm>

#include "passes/boundaries/boundaries.h"
#include "passes/budgets.h"
#include "passes/graph/functionalise.h"
#include "passes/lower/lower.h"
#include "passes/measure/measure.h"
#include "passes/meta/meta_kernels.h"
#include "passes/plan/pins.h"
#include "passes/plan/plan_json.h"
#include "passes/registry.h"
#include "passes/sizes/device_rules.h"
#include "passes/sizes/older_loss.h"
#include "passes/sizes/profile.h"
#include "runtime/describe.h"
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
  auto run = [&] { return dry_run(program, self, analysis.inputs, analysis.targets, loss, analysis.measured); };
  auto sizes = run();
  // What the run met for the first time is measured, and then it is run again with what is known now.
  while (!sizes.kernels.unmeasured.empty() && measure_calls(sizes.kernels.unmeasured, free_host_bytes() / 2) > 0) {
    sizes = run();
  }
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

bool are_here(const Module& module, const std::vector<c10::IValue>& inputs) {
  std::vector<at::Tensor> tensors;
  for (const auto& input : inputs) {
    collect_tensors(input, tensors);
  }
  for (const auto& parameter : module.parameters()) {
    tensors.push_back(parameter);
  }
  return std::none_of(
      tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_meta(); });
}

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
  const auto scratch = chosen_scratch_source(options.scratch);
  analysis.measured = scratch ? *scratch == ScratchSource::Measured : are_here(module, inputs);
  analysis.measured_seconds =
      profile ? measure_nodes(analysis.flat.graph, module._ivalue(), inputs) : std::vector<double>();
  analysis.sizes = sizes_of(analysis, analysis.program, analysis.twin.value);
  keep_draws(analysis.sizes, *analysis.program, options.rng);
  analysis.in_place.reset();
  if (analysis.flat.in_place.empty()) {
    return;
  }
  const auto graph = analysis.flat.graph->copy();
  if (put_in_place(*graph, analysis.flat.in_place)) {
    const auto program = compile_for_meta(graph, devices);
    analysis.in_place = {program, sizes_of(analysis, program, analysis.twin.value)};
  }
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
    const Analysis& analysis,
    const Smallest& smallest,
    const std::vector<int64_t>& without_pins) {
  const auto& step = analysis.sizes.step;
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
  const auto& target = analysis.targets.at(worst);
  const int64_t margin = target.is_cuda() ? target.workspace_margin : 0;
  const std::string from_margin = margin > peaks[worst] / 4 ? " Of that, " + exact(margin) +
          " are what cuBLAS and cuDNN are taken to allocate within a call; workspace_margin= says that they take less."
                                                            : "";
  const auto percent = plan::percent_for(peaks[worst], analysis.plain_sizes().peak[worst]);
  throw BudgetUnreachable(
      "recals: no plan fits into " + exact(budgets[worst]) + " on " + step.devices[worst] +
          ". The smallest budget that works is " + exact(peaks[worst]) + others + "; what sets it is " +
          at_of(step, smallest.planned.plan.predicted.peak[worst]) + "." + from_margin +
          (without_pins[worst] < peaks[worst] ? " Without the pins it would be " + exact(without_pins[worst]) + "."
               : peaks[worst] <= smallest.floor[worst] && !analysis.in_place
               ? " No plan can be below it: that op, and what cannot be made again, take as much."
               : "") +
          (percent.empty() ? "" : " As a share of the plain step's peak, \"" + percent + "\" works;") +
          " \"min\" asks for the smallest.",
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

/// Of what the module makes in place, what the plan leaves alone: neither it nor what it overwrites is made again or read
/// by what is.
std::unordered_set<std::string> stays_in_place(const Analysis& analysis, const plan::Plan& plan) {
  if (analysis.flat.in_place.empty()) {
    return {};
  }
  const auto& step = analysis.sizes.step;
  const auto& replayed = plan.predicted.replayed;
  std::vector<bool> left_alone;
  for (const auto& choice : plan.choices) {
    left_alone.push_back(choice.fate == plan::Fate::Keep);
  }
  for (size_t i = 0; i < replayed.size(); ++i) {
    const auto& node = step.nodes[replayed[i]];
    for (const auto* storages : {&node.reads, &node.writes, &node.recipe.reads}) {
      for (const int storage : *storages) {
        left_alone[storage] = false;
      }
    }
  }
  std::unordered_set<std::string> names;
  for (const auto& node : analysis.program->nodes) {
    if (node.outputs.size() != 1 || node.arguments.empty() || node.arguments[0].reg < 0) {
      continue;
    }
    const auto* value = analysis.program->registers[node.outputs[0]].value;
    if (value == nullptr || analysis.flat.in_place.count(value->debugName()) == 0) {
      continue;
    }
    const int made = analysis.sizes.register_storage[node.outputs[0]];
    const int overwritten = analysis.sizes.register_storage[node.arguments[0].reg];
    if (made >= 0 && overwritten >= 0 && left_alone[made] && left_alone[overwritten]) {
      names.insert(value->debugName());
    }
  }
  return names;
}

/// The plan in the graph, run dry.
Planned try_out(const Analysis& analysis, plan::Plan plan, const std::vector<int64_t>& budgets) {
  Planned planned;
  planned.budgets = budgets;
  for (const auto& point : plan.predicted.peak) {
    planned.simulated_peak.push_back(point.bytes);
  }
  planned.graph = analysis.flat.graph->copy();
  put_in_place(*planned.graph, stays_in_place(analysis, plan));
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

/// The step as the module writes it takes less than the planner knows of if it has ops in place. It is the plan if it
/// fits, unless policies ask for something else.
std::optional<Planned> plain_step_in_place(
    const Analysis& analysis,
    const std::vector<int64_t>& limits,
    const std::vector<int64_t>& budgets) {
  if (!analysis.in_place || plan::has_policies(analysis.sizes.step) ||
      first_over(analysis.in_place->sizes.peak, limits)) {
    return std::nullopt;
  }
  return try_out(analysis, plan::keep_all(analysis.sizes.step), budgets);
}

/// As little as possible wherever there is a limit, run dry. `planner`: of the analysis' step, or of one with other policies.
Smallest smallest_plan(const Analysis& analysis, plan::Planner& planner, const std::vector<int64_t>& budgets) {
  auto asked = budgets;
  for (auto& budget : asked) {
    budget = budget == plan::kNoBudget ? budget : 0;
  }
  auto choice = planner.choose(asked);
  if (auto* nothing = std::get_if<plan::Plan>(&choice)) { // nothing is held where there is a limit
    return {try_out(analysis, std::move(*nothing), budgets), std::vector<int64_t>(budgets.size(), 0)};
  }
  auto& reason = std::get<plan::Infeasible>(choice);
  Smallest smallest{try_out(analysis, std::move(reason.plan), budgets), {}};
  for (const auto& point : reason.floor) {
    smallest.floor.push_back(point.bytes);
  }
  auto limits = smallest.planned.peak;
  for (size_t d = 0; d < budgets.size(); ++d) {
    limits[d] = budgets[d] == plan::kNoBudget ? plan::kNoBudget : limits[d];
  }
  if (auto plain = plain_step_in_place(analysis, limits, budgets)) {
    smallest.planned = std::move(*plain);
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
  auto budgets = budgets_of(options, step.devices, analysis.plain_sizes().peak, analysis.module);
  plan::Planner planner(step);
  std::optional<Smallest> smallest;
  if (std::find(budgets.begin(), budgets.end(), kSmallest) != budgets.end()) {
    // What the error for a budget of nothing would say, so that this number of bytes gives the same plan.
    smallest = smallest_plan(analysis, planner, budgets);
    for (size_t d = 0; d < budgets.size(); ++d) {
      budgets[d] = budgets[d] == kSmallest ? smallest->planned.peak[d] : budgets[d];
    }
  }
  if (auto plain = plain_step_in_place(analysis, budgets, budgets)) {
    return std::move(*plain);
  }
  // A plan is run dry before it is trusted. Where the run needs more than the simulator said, the planner is asked again
  // for so much less, and for twice as much less each time that this does not do. That ends at its smallest plan.
  std::vector<int64_t> less(budgets.size(), 0);
  while (true) {
    auto asked = budgets;
    for (size_t d = 0; d < budgets.size(); ++d) {
      asked[d] = std::max<int64_t>(asked[d] - less[d], 0);
    }
    auto choice = planner.choose(asked);
    auto* plan = std::get_if<plan::Plan>(&choice);
    if (plan == nullptr) {
      break;
    }
    auto planned = try_out(analysis, std::move(*plan), budgets);
    planned.given_away = less;
    if (!first_over(planned.peak, budgets)) {
      return planned;
    }
    for (size_t d = 0; d < budgets.size(); ++d) {
      const int64_t over = planned.peak[d] - budgets[d];
      less[d] = over > 0 ? std::max(over, 2 * less[d]) : less[d];
    }
  }
  if (!smallest) {
    smallest = smallest_plan(analysis, planner, budgets);
  }
  auto& planned = smallest->planned;
  planned.budgets = budgets;
  if (first_over(planned.peak, budgets)) {
    unreachable(analysis, *smallest, has_must(step) ? smallest_peaks_without_pins(analysis, budgets) : planned.peak);
  }
  planned.given_away = less;
  return std::move(planned);
}

std::string json_of(const Analysis& analysis, const Planned& planned) {
  const auto& plain = analysis.plain_sizes();
  return plan::to_json(
      analysis.sizes.step,
      planned.plan,
      planned.budgets,
      analysis.in_place ? std::optional(plan::PlainStep{plain.peak, plain.held}) : std::nullopt);
}

std::vector<std::string> warnings_of(const Planned& planned) {
  std::vector<std::string> warnings;
  for (size_t d = 0; d < planned.given_away.size(); ++d) {
    // Less than that is what the planner's own levels lie apart.
    if (planned.given_away[d] > planned.budgets[d] / 100) {
      warnings.push_back(
          "recals: plans for " + exact(planned.budgets[d]) + " on " + planned.sizes.step.devices[d] +
          " take more when they are run dry than the planner counts, so this one was made for " +
          exact(planned.budgets[d] - planned.given_away[d]) +
          ". It keeps the budget, but may recompute more than it has to; a larger budget may cost less time.");
    }
  }
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
  const auto& sizes = analysis.plain_sizes();
  if (analysis.flat.devices.number_of(c10::kCPU) < 0) {
    return make_report(sizes); // the numbers stay on the host
  }
  return make_report(sizes, bytes_of_numbers(*analysis.program, sizes.differentiable));
}

Report report_of(const Analysis& analysis, const Planned& planned) {
  auto report = make_report(planned.sizes);
  for (size_t d = 0; d < report.devices.size(); ++d) {
    auto& device = report.devices[d];
    device.plain_peak = analysis.plain_sizes().peak.at(d);
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
      step.signature == (step.format < ops::kFirstFormatWithAutocast ? parse_step(signature).inputs : signature),
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
