#pragma once

/// What the autograd nodes made by one op have saved, without Python.
///
/// LibTorch's generated autograd nodes declare their `SavedVariable` members public. A script reads the installed
/// header at build time and writes a visitor per node type; nodes of other types (custom functions) are unknown, and
/// what they hold is left alone.

#include <functional>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "recals/export.h"

namespace recals {

/// `member`: the name of the node's member, "self_".
using SlotVisitor = std::function<void(torch::autograd::SavedVariable&, const char* member)>;
using VisitSlots = void (*)(torch::autograd::Node&, const SlotVisitor&);

/// Node type -> visitor; a null visitor stands for a node that saves no tensor. Generated.
RECALS_API const std::unordered_map<std::type_index, VisitSlots>& saved_slot_table();

/// The autograd nodes from `outputs` backwards that were made since the calling thread's sequence number was `since`
/// (at::sequence_number::peek() before the op), oldest first.
RECALS_API std::vector<torch::autograd::Node*> nodes_made_since(const std::vector<at::Tensor>& outputs, uint64_t since);

/// Visits the slots of `node` in declaration order. Returns false if its type is unknown.
RECALS_API bool visit_saved_slots(torch::autograd::Node& node, const SlotVisitor& visit);

} // namespace recals
