#include "runtime/budget_warning.h"

#include <memory>
#include <mutex>

#include <c10/util/Exception.h>

namespace recals {

namespace {

/// The handler is called outside of the lock, so it is shared with whoever calls it.
struct Current {
  std::mutex mutex;
  std::shared_ptr<const BudgetWarningHandler> handler;
};

/// Never destroyed: warnings may come from threads that outlive this library's static objects.
Current& current() {
  static auto* instance = new Current;
  return *instance;
}

} // namespace

void budget_warning(const std::string& text) {
  std::shared_ptr<const BudgetWarningHandler> handler;
  {
    const std::lock_guard lock(current().mutex);
    handler = current().handler;
  }
  if (handler != nullptr) {
    (*handler)(text);
  } else {
    TORCH_WARN(text);
  }
}

void handle_budget_warnings(BudgetWarningHandler handler) {
  auto next = handler ? std::make_shared<const BudgetWarningHandler>(std::move(handler)) : nullptr;
  const std::lock_guard lock(current().mutex);
  current().handler = std::move(next);
}

} // namespace recals
