#pragma once

/// What the files of this folder register their kernels with.
///
/// Note [What a meta kernel here does]
/// The analysis counts every allocation on meta, so a kernel makes its outputs, with the sizes, strides and dtype that
/// the CPU kernel gives them, and nothing else. Scratch memory of the CPU kernel is not its business
/// (passes/sizes/scratch.cpp). test/unit/meta_kernels_test.cpp compares it with the CPU kernel.

#include <string>
#include <unordered_set>

#include <torch/library.h>

namespace recals {

class MetaRegistrar {
 public:
  /// `library`: of kind IMPL for aten and kMetaKernelsKey. It must live as long as the kernels are to be used.
  explicit MetaRegistrar(torch::Library& library) : library_(library) {}

  /// `op`: name and overload, without namespace. Does nothing if the running torch has no such op.
  template <typename Result, typename... Arguments>
  void add(const char* op, Result (*kernel)(Arguments...)) {
    add(op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel));
  }

  const std::unordered_set<std::string>& added() const {
    return added_;
  }

 private:
  void add(const std::string& op, c10::KernelFunction kernel);

  torch::Library& library_;
  std::unordered_set<std::string> added_;
};

void add_attention_kernels(MetaRegistrar& registrar);
void add_convolution_kernels(MetaRegistrar& registrar);
void add_cuda_kernels(MetaRegistrar& registrar);
void add_dropout_kernels(MetaRegistrar& registrar);
void add_embedding_kernels(MetaRegistrar& registrar);
void add_fft_kernels(MetaRegistrar& registrar);
void add_indexing_kernels(MetaRegistrar& registrar);
void add_linear_algebra_kernels(MetaRegistrar& registrar);
void add_loss_kernels(MetaRegistrar& registrar);
void add_norm_kernels(MetaRegistrar& registrar);
void add_padding_kernels(MetaRegistrar& registrar);
void add_pointwise_kernels(MetaRegistrar& registrar);
void add_pooling_kernels(MetaRegistrar& registrar);
void add_quantization_kernels(MetaRegistrar& registrar);
void add_range_kernels(MetaRegistrar& registrar);
void add_reduction_kernels(MetaRegistrar& registrar);
void add_rnn_kernels(MetaRegistrar& registrar);
void add_sampling_kernels(MetaRegistrar& registrar);

} // namespace recals
