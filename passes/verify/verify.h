#pragma once

/// The contract after each stage. Each check throws c10::Error that names the clause and the node.

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

namespace recals {

/// After passes/graph. Clauses: F1 the first input is the module, the others are tensors; F2 no node has blocks; F3 every
/// node is a constant, an attribute, a list or an op with a schema; F4 every output is a tensor; F5 a Tensor[] that an op
/// returns is unpacked by the next node.
void verify_flat(const torch::jit::Graph& graph);

/// After passes/boundaries. Clauses: B1 regions are closed, not nested and not empty; B2 marks of what is recomputed or
/// packed stand in a region; B3 no value has two marks; B4 a mark follows the node that made its value, with only marks
/// and the unpacking of lists between them; B5 a pack names a known packer, and saves bytes. What is left without
/// boundaries is a flat graph.
void verify_boundaries(const torch::jit::Graph& graph);

/// After passes/lower. Clauses: L1 no region markers are left in any method; L2 every recals::checkpoint names a method of
/// the module; L3 the planned method, its plain form and its step are there.
void verify_lowered(const torch::jit::Module& module, const std::string& method);

} // namespace recals
