#include "passes/pipeline.h"

#include <nlohmann/json.hpp>

#include "passes/boundaries/boundaries.h"
#include "passes/lower/lower.h"
#include "passes/meta/meta_kernels.h"
#include "passes/plan/plan_json.h"
#include "passes/sizes/device_rules.h"
#include "passes/verify/verify.h"

namespace recals {

using torch::jit::Module;

Analysis analyse(const Module& module, const std::string& method, const std::vector<c10::IValue>& inputs) {
  const MetaKernels kernels;
  c10::InferenceMode no_inference(false); // the step that is analysed is a training step, whoever asks
  Analysis analysis;
  analysis.flat = specialise(module._ivalue(), method, inputs);
  verify_flat(*analysis.flat.graph);
  analysis.twin = meta_twin(module._ivalue());
  for (const auto& input : analysis.flat.inputs) {
    collect_tensors(input, analysis.inputs);
  }
  analysis.program = compile_for_meta(analysis.flat.graph);
  analysis.sizes = dry_run(analysis.program, analysis.twin.value, analysis.inputs, analysis.flat.device.str());
  return analysis;
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
    int64_t smallest) {
  const auto& device = step.devices.at(reason.device);
  throw BudgetUnreachable(
      "recals: no plan fits into " + plan::human_bytes(budgets[reason.device]) + " (" +
          std::to_string(budgets[reason.device]) + " bytes) on " + device + ". The smallest budget that works is " +
          plan::human_bytes(smallest) + " (" + std::to_string(smallest) + " bytes); what sets it is " +
          at_of(step, reason.at) + ".",
      {{device, smallest}});
}

/// The plan in the graph, run dry.
Planned try_out(const Analysis& analysis, plan::Plan plan, const std::vector<int64_t>& budgets) {
  Planned planned;
  planned.budgets = budgets;
  planned.simulated_peak = plan.predicted.peak[0].bytes;
  planned.graph = analysis.flat.graph->copy();
  const auto numbering = compile_for_meta(planned.graph);
  insert_boundaries(planned.graph, *numbering, analysis.sizes, plan);
  verify_boundaries(*planned.graph);
  const auto program = compile_for_meta(planned.graph);
  const auto dry = dry_run(program, analysis.twin.value, analysis.inputs, analysis.sizes.step.devices[0]);
  planned.peak = dry.peak;
  planned.held = dry.held;
  planned.plan = std::move(plan);
  planned.plan.predicted.peak[0].bytes = dry.peak;
  planned.plan.predicted.held[0] = dry.held;
  return planned;
}

} // namespace

Planned plan_step(const Analysis& analysis, const std::map<std::string, plan::Limit>& limits) {
  const auto& step = analysis.sizes.step;
  const auto budgets = budgets_of(step, limits, analysis.sizes.peak);
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
  auto choice = plan::choose(step, std::vector<int64_t>(budgets.size(), 0));
  const auto reason = std::get<plan::Infeasible>(choice);
  choice = plan::choose(step, reason.smallest);
  TORCH_CHECK(std::holds_alternative<plan::Plan>(choice), "recals: the smallest plan could not be made");
  auto smallest = try_out(analysis, std::move(std::get<plan::Plan>(choice)), budgets);
  if (smallest.peak > budgets[0]) {
    unreachable(step, reason, budgets, smallest.peak);
  }
  return smallest;
}

Module optimise(
    const Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const std::map<std::string, plan::Limit>& limits) {
  auto analysis = analyse(module, method, inputs);
  auto planned = plan_step(analysis, limits);
  analysis.flat.graph = planned.graph;
  auto lowered =
      lower(module, method, analysis.flat, plan::to_json(analysis.sizes.step, planned.plan, planned.budgets));
  verify_lowered(lowered, method);
  return lowered;
}

namespace {

/// Eager Python passes a number beside a tensor as a tensor of 8 bytes, which products save; TorchScript passes the number.
/// So many bytes more does the eager module hold.
int64_t bytes_of_numbers(const Program& program) {
  int64_t bytes = 0;
  for (const auto& node : program.nodes) {
    const auto* schema = node.source == nullptr ? nullptr : node.source->maybeSchema();
    if (schema != nullptr && schema->overload_name() == "Scalar" &&
        (schema->name() == "aten::mul" || schema->name() == "aten::div")) {
      bytes += 8;
    }
  }
  return bytes;
}

} // namespace

std::string estimate_json(const Analysis& analysis) {
  const auto& sizes = analysis.sizes;
  const int64_t numbers = bytes_of_numbers(*analysis.program);
  const auto& step = sizes.step;
  const auto plain = plan::keep_all(step);
  nlohmann::json out;
  out["devices"] = nlohmann::json::array(
      {{{"name", step.devices[0]},
        {"peak", sizes.peak + numbers},
        {"held", sizes.held + numbers},
        {"peak_at", at_of(step, plain.predicted.peak[0])}}});
  out["forward_seconds"] = sizes.forward_seconds;
  out["backward_seconds"] = sizes.backward_seconds;
  std::vector<bool> saved(step.storages.size(), false);
  for (const auto& slot : step.slots) {
    saved[slot.storage] = true;
  }
  nlohmann::json storages = nlohmann::json::array();
  std::map<std::string, int64_t> modules;
  for (size_t s = 0; s < saved.size(); ++s) {
    const auto& storage = step.storages[s];
    const auto& producer = step.nodes[storage.producer];
    storages.push_back(
        {{"name", storage.name},
         {"bytes", storage.bytes},
         {"op", producer.op},
         {"module", producer.module},
         {"where", producer.where},
         {"saved", static_cast<bool>(saved[s])}});
    if (saved[s]) {
      modules[producer.module] += storage.bytes;
    }
  }
  out["storages"] = std::move(storages);
  out["saved_per_module"] = modules;
  return out.dump();
}

} // namespace recals
