#include "runtime/waiting.h"

#include <atomic>

namespace recals {

namespace {

std::atomic<Waiter>& waiter() {
  static std::atomic<Waiter> known{nullptr};
  return known;
}

} // namespace

void set_waiter(Waiter known) {
  waiter() = known;
}

void wait_through_waiter(const std::function<void()>& wait) {
  if (const Waiter through = waiter()) {
    through(wait);
  } else {
    wait();
  }
}

} // namespace recals
