#pragma once

/// In-place ops on values of the graph itself become their out-of-place twins, so that the op's input can be kept and
/// the op can run again. Same kernels, same bits.

#include <unordered_map>
#include <unordered_set>

#include <torch/csrc/jit/ir/ir.h>

namespace recals {

/// Storage of each tensor value, as the analysis saw it.
using StorageOf = std::unordered_map<const torch::jit::Value*, const void*>;

/// The out-of-place twin of an in-place op, "aten::relu" for "aten::relu_"; empty if it has none that is known to give
/// the same bits.
std::string out_of_place(const std::string& op);

/// Rewrites the nodes of `candidates` (in-place ops whose twin gives a result of the same dtype and strides) unless
/// another value on the same storage, made before the node, is used after it, or the storage is one of `external`.
/// Returns whether the graph changed.
bool functionalise(
    torch::jit::Graph& graph,
    const std::unordered_set<torch::jit::Node*>& candidates,
    StorageOf storage_of,
    const std::unordered_set<const void*>& external);

} // namespace recals
