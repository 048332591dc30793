#pragma once

/// A step on the device beside its prediction, before anybody trains.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

#include "passes/step_options.h"

namespace recals {

struct Verification {
  std::map<std::string, int64_t> predicted; ///< peak in bytes, per device
  std::map<std::string, int64_t> measured;
  std::vector<std::string> differences; ///< in words: nodes that saved more than they were planned with

  /// No device holds more than was predicted, and no node differs.
  bool holds() const;
  /// For people; ends with a newline.
  std::string text() const;
};

/// What the caller computes of the method's result, on the device.
using DeviceLoss = std::function<at::Tensor(const c10::IValue& result)>;

/// Runs one training step of `method`, forward and backward, on copies of `module` and `inputs`: parameters, gradients,
/// buffers and random streams stay as they are, and memory is needed for a second set of them. A rewritten module runs
/// its plan, any other its plain step as the executor runs it. `loss`: null for the mean of the squares of what requires
/// grad. Throws c10::Error if inputs or module are on meta.
Verification verify_step(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<c10::IValue>& inputs,
    const StepOptions& options = {},
    const DeviceLoss& loss = {});

} // namespace recals
