#pragma once

/// A module with another type: the same tensors, submodules and methods, to which methods can be added.
///
/// Two instances of a class share its type, so a method added in place would appear on both; and Module::clone copies
/// the tensors, which would cut off an optimizer.

#include <functional>
#include <string>

#include <torch/csrc/jit/api/module.h>

namespace recals {

/// `rename(method)`: the method's name in the new module; empty: left out. `keep(attribute)`: is it taken over.
torch::jit::Module retype(
    const torch::jit::Module& module,
    const std::string& suffix,
    const std::function<std::string(const std::string&)>& rename,
    const std::function<bool(const std::string&)>& keep);

/// Adds `graph` as a method. `arguments` names its inputs after self, `returns` is its result type.
torch::jit::Function* add_method(
    const torch::jit::Module& module,
    const std::string& name,
    std::shared_ptr<torch::jit::Graph> graph,
    std::optional<c10::FunctionSchema> schema = std::nullopt);

} // namespace recals
