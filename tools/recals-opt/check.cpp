#include "tools/recals-opt/check.h"

#include <algorithm>

#include "passes/budgets.h"
#include "passes/lower/lower.h"
#include "passes/plan/plan_json.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/planned_inputs.h"

namespace recals::opt {

namespace {

/// Bytes per device, kNoBudget for none.
std::vector<int64_t> budgets_for(const Job& job, const Report& report) {
  if (job.options.limits.empty()) {
    // Of a file in another mode than it was planned for, too, the budgets are those it was planned for.
    return plan::budgets_in(plan_of(job.module));
  }
  std::vector<std::string> devices;
  std::vector<int64_t> plain_peaks;
  for (const auto& device : report.devices) {
    devices.push_back(device.name);
    plain_peaks.push_back(device.plain_peak >= 0 ? device.plain_peak : device.peak);
  }
  const auto budgets = budgets_of(job.options, devices, plain_peaks, job.module);
  if (std::find(budgets.begin(), budgets.end(), kSmallest) != budgets.end()) {
    throw BadBudget("recals: whether a file meets its budget is asked of a number of bytes, not of 'min'");
  }
  return budgets;
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
  const auto budgets = budgets_for(job, report);
  CheckResult result;
  for (size_t d = 0; d < report.devices.size(); ++d) {
    const auto& device = report.devices[d];
    result.text += device.name + ": the step peaks at " + shown(device.peak);
    if (const auto budget = budgets.at(d); budget != plan::kNoBudget) {
      const bool within = device.peak <= budget;
      result.within = result.within && within;
      result.text += std::string(", ") + (within ? "within" : "above") + " the budget of " + shown(budget);
    }
    result.text += device.overlap.empty() ? "" : "; it may be more, as " + device.overlap;
    result.text += "\n";
  }
  return result;
}

} // namespace recals::opt
