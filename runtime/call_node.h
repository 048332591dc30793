#pragma once

/// One node of a program on given tensors.

#include "runtime/owned_slots.h"
#include "runtime/program.h"

namespace recals {

/// Runs the op of `node`. `inputs`: the tensors of `node.inputs`, in their order. Returns one tensor per output.
/// `replay`: what the op would write besides its outputs is withheld. `generator`: what is passed where the node takes an
/// attribute of the module; undefined for None.
std::vector<at::Tensor> call_node(
    const ProgramNode& node,
    const std::vector<at::Tensor>& inputs,
    bool replay,
    const at::Generator& generator = {});

/// The tensors that `node` reads and writes, for telling its slots apart.
std::vector<Shown> shown_by(
    const ProgramNode& node,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs);

/// The device whose default generator a random node draws from when it runs on `inputs`.
c10::Device device_of_draw(const ProgramNode& node, const std::vector<at::Tensor>& inputs);

/// The generator that the op is given as an argument; undefined if it goes by its device's default generator. `self`: the
/// module.
RECALS_API at::Generator own_generator(const ProgramNode& node, const c10::IValue& self);

/// An attribute of `object`, however deep.
c10::IValue attribute_at(c10::IValue object, const std::vector<std::string>& path, size_t length);

} // namespace recals
