#include "runtime/step_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include "runtime/mismatch.h"

namespace recals {

namespace {

thread_local StepChecks* checks = nullptr;

constexpr size_t kMostTexts = 3; ///< in one warning

} // namespace

StepChecks::StepChecks() : outer_(checks) {
  checks = this;
}

StepChecks::~StepChecks() {
  checks = outer_;
}

std::unique_ptr<StepCheck> check_for(const Program& program, const c10::IValue& self) {
  if (!c10::GradMode::is_enabled() || (checks == nullptr && program.compared.exchange(true))) {
    return nullptr;
  }
  const bool has_facts = self.toObjectRef().type()->hasAttribute(kFactsAttribute);
  return has_facts ? std::make_unique<StepCheck>(program) : nullptr;
}

void finish_check(StepCheck& check, const Program& program, const c10::IValue& self) {
  const auto expected = parse_step_facts(self.toObjectRef().getAttr(kFactsAttribute).toStringRef());
  if (expected.size() != program.nodes.size()) {
    return; // a region that is called by itself
  }
  const auto found = differences(program, expected, check.met());
  if (checks != nullptr) {
    ++checks->steps;
    checks->differences.insert(checks->differences.end(), found.begin(), found.end());
    return;
  }
  if (found.empty()) {
    return;
  }
  std::string text =
      "recals: this step keeps more for its backward than it was planned with, so its budget may not hold: ";
  for (size_t i = 0; i < found.size() && i < kMostTexts; ++i) {
    text += (i > 0 ? "; " : "") + found[i];
  }
  if (found.size() > kMostTexts) {
    text += "; and " + std::to_string(found.size() - kMostTexts) + " more ops";
  }
  report_mismatch(
      self,
      Mismatch::Step,
      text +
          ". Kernels were chosen in another way than when the plan was made: call recals.optimize under the settings "
          "that the step runs under.");
}

} // namespace recals
