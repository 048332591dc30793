#include "passes/sizes/cuda_scratch.h"

#include <unordered_map>

#include "passes/sizes/scratch.h"

namespace recals {

namespace {

constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));

int64_t none(const KernelCall&) {
  return 0;
}

/// ATen/native/cudnn/ConvShared.cpp: operands are brought into the order of the convolution first, which is channels-last
/// if one of them is.
int64_t convolution_copies(const at::Tensor* input, const at::Tensor* weight) {
  if (input == nullptr || weight == nullptr) {
    return 0;
  }
  auto format = input->suggest_memory_format();
  if (format == at::MemoryFormat::Contiguous) {
    format = weight->suggest_memory_format();
  }
  const bool fits = input->dim() == (format == at::MemoryFormat::ChannelsLast3d ? 5 : 4);
  if (!fits) {
    format = at::MemoryFormat::Contiguous;
  }
  return (input->is_contiguous(format) ? 0 : nbytes(input)) + (weight->is_contiguous(format) ? 0 : nbytes(weight));
}

int64_t convolution(const KernelCall& call) {
  return convolution_copies(defined(call.inputs, 0), defined(call.inputs, 1));
}

int64_t convolution_backward(const KernelCall& call) {
  const auto* gradient = defined(call.inputs, 0);
  const int64_t of_gradient =
      gradient == nullptr || gradient->is_contiguous(gradient->suggest_memory_format()) ? 0 : nbytes(gradient);
  return of_gradient + convolution_copies(defined(call.inputs, 1), defined(call.inputs, 2));
}

/// flash_attn/flash_api.cpp, mha_bwd: the query's gradient in float and a sum for each of its rows, positions rounded up
/// to 128 and channels to 32.
int64_t flash_backward(const KernelCall& call) {
  const auto* query = defined(call.inputs, 1);
  if (query == nullptr || query->dim() != 4) {
    return 0;
  }
  const int64_t rows = query->size(0) * query->size(1) * round_up(query->size(2), 128);
  return rows * (round_up(query->size(3), 32) + 1) * kFloatBytes;
}

/// mem_eff_attention/kernel_backward.h: a sum for each row; gradients of halves are added up in float.
int64_t efficient_backward(const KernelCall& call) {
  const auto* query = defined(call.inputs, 1);
  if (query == nullptr || query->dim() != 4) {
    return 0;
  }
  int64_t floats = query->size(0) * query->size(1) * round_up(query->size(2), 32);
  if (at::isReducedFloatingType(query->scalar_type())) {
    for (size_t i = 1; i <= 3; ++i) {
      floats += defined(call.inputs, i)->numel();
    }
  }
  return floats * kFloatBytes;
}

/// ATen/native/cuda/Embedding.cu: the indices are sorted with their positions, and rows of equal indices added up in float.
int64_t embedding_backward(const KernelCall& call) {
  const auto* gradient = defined(call.inputs, 0);
  const auto* indices = defined(call.inputs, 1);
  if (gradient == nullptr || indices == nullptr) {
    return 0;
  }
  constexpr int64_t arrays = 6;
  return arrays * nbytes(indices) + gradient->numel() * kFloatBytes * 11 / 10;
}

struct Rule {
  int64_t (*bytes)(const KernelCall&);
  bool has_workspace; ///< of a size that only the library knows
};

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::convolution", {&convolution, true}},
      {"aten::convolution_backward", {&convolution_backward, true}},
      {"aten::mm", {&copies_for_blas, true}},
      {"aten::addmm", {&copies_for_blas, true}},
      {"aten::bmm", {&copies_for_blas, true}},
      {"aten::baddbmm", {&copies_for_blas, true}},
      {"aten::mv", {&none, true}},
      {"aten::addmv", {&none, true}},
      {"aten::dot", {&none, true}},
      {"aten::cudnn_batch_norm", {&none, true}},
      {"aten::cudnn_batch_norm_backward", {&none, true}},
      {"aten::native_layer_norm_backward", {&none, true}},
      {"aten::native_group_norm_backward", {&none, true}},
      {"aten::_cudnn_rnn", {&none, true}},
      {"aten::_cudnn_rnn_backward", {&none, true}},
      {"aten::_scaled_dot_product_flash_attention", {&none, true}},
      {"aten::_scaled_dot_product_flash_attention_backward", {&flash_backward, false}},
      {"aten::_scaled_dot_product_efficient_attention_backward", {&efficient_backward, false}},
      {"aten::embedding_dense_backward", {&embedding_backward, false}},
      {"aten::mse_loss", {&reduced_loss, false}},
      {"aten::smooth_l1_loss", {&reduced_loss, false}},
      {"aten::huber_loss", {&reduced_loss, false}},
  };
  return table;
}

} // namespace

int64_t cuda_scratch_bytes(const KernelCall& call, int64_t margin) {
  const auto rule = rules().find(call.op);
  if (rule == rules().end()) {
    return 0;
  }
  return rule->second.bytes(call) + (rule->second.has_workspace ? margin : 0);
}

} // namespace recals
