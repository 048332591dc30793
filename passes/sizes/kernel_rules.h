#pragma once

/// What a kernel of the target device does that its meta kernel does not show: scratch memory and work.

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

namespace recals {

/// One call of a kernel, seen on meta tensors.
struct KernelCall {
  std::string op; ///< "aten::addmm"
  std::string overload; ///< "out", often empty
  std::vector<c10::IValue> inputs;
  std::vector<c10::IValue> outputs;
  std::string within; ///< the autograd node whose backward it is part of, "ProdBackward0"; empty in the forward
};

/// Composite ops that the rules below describe as a whole: on meta they do not take the device's way.
bool runs_as_one(const std::string& op);

/// Bytes that the CPU kernel allocates and frees within the call besides its outputs; 0 if it is not in the table.
/// An upper bound; test/python/test_memory.py compares it with the kernels.
int64_t scratch_bytes(const KernelCall& call);

/// Bytes of the copies that torch's dispatcher makes before a kernel, on any device: conjugates and negatives are views,
/// and few kernels read them as they are.
int64_t copies_of_lazy_operands(const KernelCall& call);

/// Bytes of the storage of the call's first output where they may be more than its meta kernel makes them: some losses
/// reduce into the storage of their elementwise result. 0 for all others.
int64_t retained_bytes(const KernelCall& call);

/// What limits a kernel.
enum class WorkKind : uint8_t {
  Pointwise, ///< bytes; all that is nothing else
  Matmul, ///< floating-point operations, or bytes
  Convolution,
  Reduction, ///< bytes, of which far fewer are written than read; or rows that are read more than once
  Copy, ///< bytes, moved and not changed
};

/// What an op costs per element besides moving its bytes, or more than moving them.
enum class ElementKind : uint8_t {
  None,
  Random, ///< numbers drawn
  Transcendental, ///< exp, tanh, erf, ... evaluated
  BatchNorm, ///< elements normalised over the batch
  Pooling, ///< windows; their size matters little
};

struct Work {
  WorkKind kind = WorkKind::Pointwise;
  c10::ScalarType dtype = c10::kFloat; ///< of the first output
  double flops = 0; ///< multiply-adds count two
  int64_t bytes = 0; ///< read and written
  ElementKind element_kind = ElementKind::None;
  int64_t elements = 0; ///< of that kind
};

/// cost_model.h makes seconds of it.
Work work_of(const KernelCall& call);

} // namespace recals
