#pragma once

/// In-place ops on values of the graph itself become their out-of-place twins, so that the op's input can be kept and
/// the op can run again. Same kernels, same bits. Where a plan makes nothing of that again, they go back.
///
/// Most twins are the ops without the underscore. The derivative of some in-place ops is computed from the result, in
/// other roundings than that of the op without; their twins are ops of Recals, which run the in-place op on a copy
/// (runtime/ops.h).

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>

namespace recals {

/// Storage of each tensor value, as the analysis saw it.
using StorageOf = std::unordered_map<const torch::jit::Value*, const void*>;

/// The out-of-place twin of an in-place op, "aten::relu" for "aten::relu_", "recals::elu" for "aten::elu_"; empty if it
/// has none that is known to give the same bits, forward and backward.
std::string out_of_place(const std::string& op);

/// The other way round: "aten::relu_" for "aten::relu"; empty for what is no twin.
std::string in_place(const std::string& twin);

/// Note [Views that are written]
/// After an op in place on a view, autograd hands the gradient on in the layout of the view and of its base, whatever it
/// came in, and what sums it up in another layout may round otherwise. So the twin's result is read through as_strided,
/// whose derivative does that. It is not enough where view or base is not contiguous: such ops have no safe twin.
struct WrittenView {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};
/// By node, the view that it writes; nothing where it writes none that gets a gradient.
using Candidates = std::unordered_map<torch::jit::Node*, std::optional<WrittenView>>;

/// Rewrites the nodes of `candidates` (in-place ops whose twin gives a result of the same dtype and strides) unless
/// another value on the same storage, made before the node, is used after it, or the storage is one of `external`.
/// Returns the names of the values that were made in place.
std::unordered_set<std::string> functionalise(
    torch::jit::Graph& graph,
    const Candidates& candidates,
    StorageOf storage_of,
    const std::unordered_set<const void*>& external);

/// Makes values with these names in place again. For some of what `functionalise` has returned, and a graph whose values
/// have kept their names; others are left alone. Returns whether the graph changed.
bool put_in_place(torch::jit::Graph& graph, const std::unordered_set<std::string>& names);

} // namespace recals
