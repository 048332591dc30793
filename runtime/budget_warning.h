#pragma once

/// How the runtime and the passes tell a user that a budget may not hold.

#include <functional>
#include <string>

#include "recals/export.h"

namespace recals {

/// Says `text`, which begins with "recals:", as a warning: with Python, `recals.BudgetWarning`; else through TORCH_WARN.
/// Who calls decides how often. May be called from any thread, with or without the GIL, but with no lock held that a
/// thread could wait for while it holds the GIL. Throws what the handler throws: a warning may have been made an error.
RECALS_API void budget_warning(const std::string& text);

using BudgetWarningHandler = std::function<void(const std::string& text)>;

/// From now on `handler` is given the warnings of this process; an empty one stands for TORCH_WARN.
RECALS_API void handle_budget_warnings(BudgetWarningHandler handler);

} // namespace recals
