#pragma once

/// What the files of scratch rules share. A rule gives the bytes that a CPU kernel allocates and frees within a call, above
/// what is live when it returns.

#include "passes/sizes/kernel_rules.h"

namespace recals {

/// Input or output `i` if it is a tensor, else null.
const at::Tensor* defined(const std::vector<c10::IValue>& values, size_t i);

/// 0 for null.
int64_t nbytes(const at::Tensor* tensor);

/// The least multiple of `unit` that is not below `value`.
constexpr int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// As many as may work on an op: the number of the moment may be raised before the step.
int64_t threads();

/// Copies of matrices that BLAS cannot take as they are laid out.
int64_t copies_for_blas(const KernelCall& call);

/// A loss's elementwise result before it is reduced, and some single numbers.
int64_t reduced_loss(const KernelCall& call);

int64_t convolution_scratch(const KernelCall& call);
int64_t convolution_backward_scratch(const KernelCall& call);

} // namespace recals
