#pragma once

/// Waiting for a lock whose holder may need what the waiting thread has.
///
/// Who asks for a slot by hand, from Python, has Python's lock; who replays an op that is written in Python needs it. If the
/// one waits for the other's frame with that lock, neither gets on. The binding says how to let go of it meanwhile.

#include <functional>
#include <mutex>

#include "recals/export.h"

namespace recals {

/// Runs a function that waits.
using Waiter = void (*)(const std::function<void()>& wait);

/// Threads of this process wait through `waiter` from now on; until then, and without Python, they just wait.
RECALS_API void set_waiter(Waiter waiter);

/// Runs `wait` through the process's waiter.
RECALS_API void wait_through_waiter(const std::function<void()>& wait);

/// Locks `mutex`; if it must wait for that, it does so through the waiter.
template <typename Mutex>
std::unique_lock<Mutex> lock_politely(Mutex& mutex) {
  std::unique_lock<Mutex> lock(mutex, std::try_to_lock);
  if (!lock) {
    wait_through_waiter([&] { lock.lock(); });
  }
  return lock;
}

} // namespace recals
