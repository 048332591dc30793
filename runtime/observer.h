#pragma once

/// What is seen of a step while it runs, on meta or on the device. The executor that trains is the executor that is measured.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace recals {

struct SavedSlot {
  int node = 0; ///< index into Program::nodes
  const at::Tensor& tensor;
  int reg = -1; ///< the register that shows its storage; -1: internal
  int internal = -1; ///< number among the node's internals
  std::string saved_by; ///< "ReluBackward0.result_": the autograd node and its member
};

class Observer {
 public:
  virtual ~Observer() = default;
  /// Inputs and attributes are in their registers; the others are undefined.
  virtual void run_begins(const std::vector<at::Tensor>& registers) = 0;
  virtual void node_begins(int node) = 0;
  virtual void node_ends(int node, const std::vector<at::Tensor>& outputs) = 0;
  /// For each slot, also one that the plan drops at once.
  virtual void slot_met(const SavedSlot& slot) = 0;
  /// For each slot that keeps memory: the hooks to put on it, or null to leave it.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> slot_saved(const SavedSlot& slot) = 0;
};

} // namespace recals
