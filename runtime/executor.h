#pragma once

/// Runs a Program op by op and drops what the plan drops.

#include "runtime/observer.h"
#include "runtime/program.h"

namespace recals {

/// `self`: the module (an object) whose attributes the program reads. With grad mode off nothing is saved and nothing
/// dropped. Returns the outputs in the order of `Program::outputs`.
RECALS_API std::vector<at::Tensor> run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    Observer* observer = nullptr);

} // namespace recals
