#pragma once

/// What ops do besides computing their outputs. Torch's own schema and tags are asked first; the tables hold what they
/// do not tell.

#include <functional>
#include <string>
#include <vector>

#include <torch/csrc/jit/ir/ir.h>

#include "recals/export.h"

namespace recals {

/// Draws from a generator: torch's tag nondeterministic_seeded, unless the arguments say that this call does not (a dropout
/// with p=0 or not in training). `constant(i)` gives the constant value of argument i, None for others.
RECALS_API bool draws(const torch::jit::Node& node, const std::function<c10::IValue(size_t)>& constant);

RECALS_API bool is_generator(const c10::Type& type);

/// Is it one of torch's ops between processes: a collective, or what waits for one? `qualified`: "c10d::allreduce_".
RECALS_API bool communicates(const std::string& qualified);

/// False for ops that write their arguments, have side effects, or communicate.
RECALS_API bool may_run_twice(const torch::jit::Node& node);

/// May the op's kernel ask whether its inputs require grad, or for grad mode, and compute otherwise without? Then a replay runs
/// it as the forward did. `qualified`: "aten::matmul"; a test holds the answers against what each op does.
RECALS_API bool asks_for_grad(const std::string& qualified, const std::string& overload);

/// Arguments that the kernel writes without its schema saying so (running statistics): positions that a replay passes
/// as None. `constant(i)` gives the constant value of argument i.
RECALS_API std::vector<size_t> written_arguments(
    const std::string& op,
    const std::function<c10::IValue(size_t)>& constant);

/// Whether `op` saves the same for the backward when those arguments are None. instance_norm saves copies of the
/// statistics, one for each sample, so that a replay without them would take one saved tensor for another.
RECALS_API bool saves_no_statistics(const std::string& op);

} // namespace recals
