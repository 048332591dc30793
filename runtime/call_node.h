#pragma once

/// One node of a program on given tensors.

#include "runtime/owned_slots.h"
#include "runtime/program.h"

namespace recals {

/// Runs the op of `node`. `inputs`: the tensors of `node.inputs`, in their order. Returns one tensor per output.
/// `replay`: what the op would write besides its outputs is withheld.
std::vector<at::Tensor> call_node(const ProgramNode& node, const std::vector<at::Tensor>& inputs, bool replay);

/// The tensors that `node` reads and writes, for telling its slots apart.
std::vector<Shown> shown_by(
    const ProgramNode& node,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs);

/// The device that a node without tensor inputs makes its outputs on.
c10::Device device_of_call(const ProgramNode& node);

} // namespace recals
