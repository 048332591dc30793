#pragma once

/// Budgets in bytes, where they depend on the plain step or on the machine.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/jit/api/module.h>

#include "passes/step_options.h"

namespace recals {

/// What a training step may take on a device, and why it is not all that is free. Bytes.
struct Room {
  /// On an accelerator what the driver has free, plus what torch's caching allocator has reserved and does not use. On the
  /// CPU the least of what the system has available and what each control group around the process still allows (its limit,
  /// less its use, plus its inactive page cache).
  int64_t free = 0;
  int64_t slack = 0; ///< a twentieth of it: fragments, and what other libraries take meanwhile
  int64_t moved = 0; ///< parameters and buffers that are still to be moved to the device
  int64_t gradients = 0; ///< of parameters on the device that need a gradient and have none
  /// Two numbers for each element of a parameter that needs a gradient, as Adam keeps them. Recals does not know the
  /// optimizer, nor whether it has made its state already.
  int64_t optimizer = 0;

  int64_t budget() const {
    return free - slack - moved - gradients - optimizer;
  }
};

/// `moves`: the module will be moved to `device` for training. Throws c10::ValueError if the device is not there.
Room room_on(const torch::jit::Module& module, c10::Device device, bool moves);

/// What the CPU can still give, as `Room::free` says. `root`: where /proc and /sys are, for tests.
int64_t free_host_bytes(const std::string& root = "");

/// Stands for the smallest budget that works, which takes a search.
constexpr int64_t kSmallest = -1;

/// A budget for a device that the step does not use, or nonsense.
class BadBudget : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Bytes per device of `devices`, each limit where it counts: kNoBudget for none, kSmallest for "min", a fraction of that
/// device's plain peak (`plain_peaks`). `module`: the plain one. Throws BadBudget; c10::ValueError if "auto" leaves nothing, or a device is not there.
std::vector<int64_t> budgets_of(
    const StepOptions& options,
    const std::vector<std::string>& devices,
    const std::vector<int64_t>& plain_peaks,
    const torch::jit::Module& module);

} // namespace recals
