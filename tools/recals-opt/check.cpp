#include "tools/recals-opt/check.h"

#include "passes/lower/lower.h"
#include "passes/plan/plan_json.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/planned_inputs.h"

namespace recals::opt {

namespace {

int64_t budget_for(const Job& job, const DeviceReport& device) {
  for (const auto& [name, limit] : job.options.limits) {
    (void)limit;
    if (!name.empty() && name != device.name) {
      throw BadBudget("recals: there is a budget for '" + name + "', but the step runs on " + device.name);
    }
  }
  const auto& limits = job.options.limits;
  const auto own = limits.find(device.name);
  const auto limit = own != limits.end() ? own : limits.find("");
  if (limit != limits.end()) {
    return plan::bytes_of(limit->second, device.plain_peak >= 0 ? device.plain_peak : device.peak);
  }
  // Of a file in another mode than it was planned for, too, the budget is the one it was planned for.
  return device.budget >= 0 ? device.budget : plan::budgets_in(plan_of(job.module)).at(0);
}

std::string shown(int64_t bytes) {
  return std::to_string(bytes) + " bytes (" + plan::human_bytes(bytes) + ")";
}

} // namespace

CheckResult check(Job job, const std::vector<std::string>& inputs) {
  if (!is_lowered(job.module) && job.options.limits.empty()) {
    throw BadInput("it is a plain module without a budget of its own; give one with --budget");
  }
  job.inputs = inputs_or_planned(job.module, job.method, inputs);
  const auto report = recals::report_of(job.module, job.method, job.inputs, job.options);
  const auto& device = report.devices.at(0);
  const auto budget = budget_for(job, device);
  CheckResult result;
  result.within = device.peak <= budget;
  result.text = device.name + ": the step peaks at " + shown(device.peak) + ", " +
      (result.within ? "within" : "above") + " the budget of " + shown(budget) + "\n";
  return result;
}

} // namespace recals::opt
