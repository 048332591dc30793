#pragma once

/// What is done about a training step that its module's plan cannot hold within the budget.
///
/// The gradients are right in any case. A rewritten module says in an attribute of its own, which is saved with it, what
/// its user wants: a warning, an error, or nothing.

#include <string>

#include <ATen/core/ivalue.h>

#include "recals/export.h"

namespace recals {

/// The attribute of a rewritten module; one that has none warns.
constexpr const char* kOnMismatchAttribute = "recals_on_mismatch";

enum class OnMismatch { Warn, Error, Plain };

/// Of "warn", "error" or "plain"; throws c10::ValueError for another text.
RECALS_API OnMismatch parse_on_mismatch(const std::string& text);

/// What there is to say; each is said once for a module.
enum class Mismatch {
  Attributes, ///< the module is not in the state that the plan was made for
  Hooks, ///< somebody else's hooks have the saved tensors
  Step, ///< the step keeps more than the dry run did
};

/// Warns (budget_warning), throws c10::Error or does nothing, as the user of `module`, a rewritten one, wants it. `text`
/// begins with "recals:". Counts the step (Counters::mismatches).
RECALS_API void report_mismatch(const c10::IValue& module, Mismatch what, const std::string& text);

} // namespace recals
