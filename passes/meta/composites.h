#pragma once

/// Ops that the CPU composes of others, on meta.

#include <memory>

namespace torch {
class Library;
}

namespace recals {

/// While it lives, meta tensors go through an op as the CPU does, also where Python registered a meta kernel for the
/// whole op.
///
/// Note [Composites on meta]
/// `import torch` gives some 200 ops a meta kernel in Python that the CPU has no kernel for, because it composes them of
/// others (mul.Scalar, binary_cross_entropy_with_logits). Run by that, an op shows none of the kernels and temporaries
/// that it has on the CPU, and a plan made in a Python process would be another one than recals-opt makes. Here such an
/// op runs its composite form. It is not done for good: the meta kernels belong to the whole process.
class CompositesOnMeta {
 public:
  CompositesOnMeta();
  ~CompositesOnMeta();
  CompositesOnMeta(const CompositesOnMeta&) = delete;
  CompositesOnMeta& operator=(const CompositesOnMeta&) = delete;

 private:
  std::unique_ptr<torch::Library> library_;
};

} // namespace recals
