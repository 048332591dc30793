#pragma once

/// The slots of one op, told apart: which show a tensor that the graph shows, and which are internal.

#include <functional>
#include <vector>

#include "runtime/saved_slots.h"

namespace recals {

/// A tensor that the op read or wrote, with the register that holds it; -1 for a constant.
struct Shown {
  int reg = -1;
  const at::Tensor* tensor = nullptr;
};

/// One saved tensor. `reg`: the register that shows its storage, or -1; `internal`: the number of its storage among
/// those of the op that nothing shows, in order of appearance, or -1. Both are -1 for a constant of the graph.
struct OwnedSlot {
  const at::Tensor& tensor;
  int reg;
  int internal;
  torch::autograd::SavedVariable& saved;
  const torch::autograd::Node& node; ///< that saved it
  const char* member; ///< under this name
};

/// Visits what the autograd nodes made since `since` have saved (see nodes_made_since), except tensors without memory
/// and slots that carry the user's own hooks.
RECALS_API void for_each_owned_slot(
    const std::vector<at::Tensor>& outputs,
    uint64_t since,
    const std::vector<Shown>& shown,
    const std::function<void(const OwnedSlot&)>& visit);

} // namespace recals
