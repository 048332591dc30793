#include "tools/recals-opt/check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <nlohmann/json.hpp>

#include "passes/lower/lower.h"
#include "passes/sizes/device_rules.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/input_spec.h"

namespace recals::opt {

namespace {

c10::IValue planned_inputs(const Job& job, const c10::FunctionSchema& schema, const std::string& signature) {
  std::vector<c10::TypePtr> types;
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    types.push_back(schema.arguments()[i].type());
  }
  return value_of(signature, c10::TupleType::create(std::move(types)), "the plan's inputs of " + job.method);
}

/// Would a training step on these inputs follow the plan? Asks the op that decides it in the step.
bool follows_plan(const Job& job, const Entry& entry) {
  torch::jit::Stack stack{
      job.module._ivalue(),
      c10::ivalue::Tuple::create(job.inputs),
      entry.signature,
      c10::IValue(entry.attributes),
      entry.format};
  at::AutoGradMode grad(true);
  c10::Dispatcher::singleton().findSchemaOrThrow("recals::enter", "").callBoxed(stack);
  return stack.back().toBool();
}

struct Peak {
  std::string device;
  int64_t bytes = 0;
  int64_t plain = 0; ///< of the plain step
};

Peak peak_of(const Job& job) {
  const auto analysis = analyse(job.module, job.method, job.inputs);
  const auto& device = analysis.sizes.step.devices[0];
  Peak peak{device, analysis.sizes.peak, analysis.sizes.peak};
  if (is_lowered(job.module) && follows_plan(job, entry_of(job.module))) {
    const auto step = job.module.get_method("recals_" + job.method + "_step");
    const auto program = compile_for_meta(torch::jit::toGraphFunction(step.function()).graph());
    const auto twin = meta_twin(job.module._ivalue());
    peak.bytes = dry_run(program, twin.value, analysis.inputs, device).peak;
  }
  return peak;
}

int64_t stored_budget(const Job& job, const std::string& device) {
  const auto document = nlohmann::json::parse(plan_of(job.module));
  for (const auto& entry : document.at("devices")) {
    if (entry.at("name") == device && !entry.at("budget").is_null()) {
      return entry.at("budget").get<int64_t>();
    }
  }
  throw BadInput("the plan in the file has no budget for " + device + "; give one with --budget");
}

int64_t budget_for(const Job& job, const Peak& peak) {
  for (const auto& [device, limit] : job.limits) {
    if (!device.empty() && device != peak.device) {
      throw BadBudget("recals: there is a budget for '" + device + "', but the step runs on " + peak.device);
    }
  }
  const auto own = job.limits.find(peak.device);
  const auto any = own != job.limits.end() ? own : job.limits.find("");
  return any != job.limits.end() ? plan::bytes_of(any->second, peak.plain) : stored_budget(job, peak.device);
}

std::string shown(int64_t bytes) {
  return std::to_string(bytes) + " bytes (" + plan::human_bytes(bytes) + ")";
}

} // namespace

CheckResult check(Job job, const std::vector<std::string>& inputs) {
  const bool rewritten = is_lowered(job.module);
  if (!rewritten && job.limits.empty()) {
    throw BadInput("it is a plain module without a budget of its own; give one with --budget");
  }
  const auto& schema = job.module.get_method(job.method).function().getSchema();
  job.inputs = rewritten && inputs.empty()
      ? planned_inputs(job, schema, entry_of(job.module).signature).toTupleRef().elements().vec()
      : arguments_of(schema, inputs);
  const auto peak = peak_of(job);
  const auto budget = budget_for(job, peak);
  CheckResult result;
  result.within = peak.bytes <= budget;
  result.text = peak.device + ": the step peaks at " + shown(peak.bytes) + ", " + (result.within ? "within" : "above") +
      " the budget of " + shown(budget) + "\n";
  return result;
}

} // namespace recals::opt
