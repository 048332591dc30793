#pragma once

/// The arguments of a step: from the command line, or those that a rewritten file was planned for.

#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>

namespace recals::opt {

/// `texts`: as on the command line; none for a rewritten module stands for the inputs of its plan, whose autocast state
/// and backend switches are then set. Throws like arguments_of, and BadInput if there is no such method.
std::vector<c10::IValue> inputs_or_planned(
    const torch::jit::Module& module,
    const std::string& method,
    const std::vector<std::string>& texts);

} // namespace recals::opt
