#pragma once

/// The comparison of a plan's first training step with the dry run that the plan was made by.
///
/// A rewritten module carries the facts of its step (step_facts.h) in an attribute. The first time that its program runs in
/// grad mode, in a process, the slots that its nodes leave are listened to; where they are more than was planned, the
/// module's user is told as report_mismatch does. Later steps are not looked at and cost nothing.

#include <optional>
#include <string>
#include <vector>

#include "runtime/step_facts.h"

namespace recals {

/// The attribute of a rewritten module; files of older versions have none, and are not checked.
constexpr const char* kFactsAttribute = "recals_facts";

/// For the scope of one thread: steps of rewritten modules are compared whether they are the first or not, and what differs
/// is kept here instead of being reported.
class RECALS_API StepChecks {
 public:
  StepChecks();
  ~StepChecks();
  StepChecks(const StepChecks&) = delete;
  StepChecks& operator=(const StepChecks&) = delete;

  int steps = 0; ///< that were compared
  std::vector<std::string> differences;

 private:
  StepChecks* outer_;
};

/// The listener for this run of `program` with `self`, a rewritten module; null where nothing is to be compared.
std::unique_ptr<StepCheck> check_for(const Program& program, const c10::IValue& self);

/// After the run.
void finish_check(StepCheck& check, const Program& program, const c10::IValue& self);

} // namespace recals
