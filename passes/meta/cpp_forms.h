#pragma once

/// Ops without a kernel in this folder, kept from the meta kernels in Python.
///
/// Note [C++ forms on meta]
/// `import torch` gives hundreds of ops a meta kernel in Python, on top of what LibTorch has for them: a decomposition, or a
/// computation of the shape. A plan made by it could differ from that of recals-opt, it takes a hundred times as long, and
/// the first call imports a compiler (seconds). So inside a MetaKernels scope
///   - an op that the CPU composes of others (mul.Scalar, binary_cross_entropy_with_logits) is composed on meta, too;
///   - a structured op (add, addmm, gelu) takes LibTorch's form for any backend, which computes the outputs' shapes, makes
///     them and calls the out= form; that one has nothing left to do;
///   - an op that only writes numbers into its first argument (zero_, masked_fill_) returns that.
/// What a kernel in Python returns also has one holder more, which the engine's sums ask about.

#include <string>
#include <unordered_set>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace recals {

/// Is it a call on meta tensors? Factories have no tensor that tells the device, but say it.
bool is_on_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack);

/// `library`: of kind IMPL for aten and kMetaKernelsKey; `others`: ops that it has kernels for.
void add_cpp_forms(torch::Library& library, const std::unordered_set<std::string>& others);

/// The call goes on to what is registered below `key`.
void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::DispatchKey key, torch::jit::Stack* stack);

/// "add.Tensor" of "aten::add.Tensor".
std::string short_name(const c10::OperatorName& name);

} // namespace recals
