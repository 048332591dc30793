#include "passes/sizes/kernel_rules.h"

/// Scratch memory of CPU kernels, found by measuring each op's allocations (test/python/test_memory.py compares).
///
/// Note [oneDNN convolutions]
/// A float convolution on CPU goes through oneDNN, which works on copies in a layout of channel blocks of 16: input,
/// weight and output are each copied, channels rounded up to 16 (an input of at most 3 channels is read as it is).
///   forward:            input' + weight' + output' are live, then output' and output
///   backward, input:    grad' + weight' + input' and a scratchpad, then input' and the gradient
///   backward, weight:   input' + grad' + weight' and a scratchpad, then weight' and the gradient
/// The scratchpads depend on threads and instruction set; the bounds below are above all that were seen.

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace recals {

namespace {

constexpr int64_t kBlock = 16;
constexpr int64_t KiB = 1024;
constexpr int64_t MiB = 1024 * KiB;

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

const at::Tensor* defined(const std::vector<c10::IValue>& values, size_t i) {
  return i < values.size() && values[i].isTensor() && values[i].toTensor().defined() ? &values[i].toTensor() : nullptr;
}

int64_t nbytes(const at::Tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int64_t>(tensor->nbytes());
}

/// Bytes of an activation in blocks of channels.
int64_t blocked(const at::Tensor* activation, bool may_be_plain) {
  if (activation == nullptr || activation->dim() < 3 || activation->size(1) == 0) {
    return nbytes(activation);
  }
  const int64_t channels = activation->size(1);
  if (may_be_plain && channels <= 3) {
    return 0;
  }
  return nbytes(activation) / channels * round_up(channels, kBlock);
}

int64_t blocked_weight(const at::Tensor* weight) {
  if (weight == nullptr || weight->dim() < 3 || weight->size(0) == 0 || weight->size(1) == 0) {
    return nbytes(weight);
  }
  if (weight->size(1) == 1) { // depthwise: only one of the two is blocked
    return nbytes(weight) / weight->size(0) * round_up(weight->size(0), kBlock);
  }
  return nbytes(weight) / (weight->size(0) * weight->size(1)) * round_up(weight->size(0), kBlock) *
      round_up(weight->size(1), kBlock);
}

int64_t convolution(const KernelCall& call) {
  const bool transposed = call.inputs.at(6).toBool();
  const auto* output = defined(call.outputs, 0);
  const int64_t input_copy = blocked(defined(call.inputs, 0), true);
  const int64_t weight_copy = blocked_weight(defined(call.inputs, 1));
  const int64_t output_copy = blocked(output, false);
  const int64_t own = transposed ? 0 : nbytes(output);
  return std::max(input_copy + weight_copy + output_copy - own, output_copy);
}

int64_t convolution_backward(const KernelCall& call) {
  const auto* input = defined(call.inputs, 1);
  const bool transposed = call.inputs.at(7).toBool();
  const int64_t grad_copy = blocked(defined(call.inputs, 0), false) * (transposed ? 2 : 1);
  const int64_t input_copy = blocked(input, true);
  const int64_t weight_copy = blocked_weight(defined(call.inputs, 2));
  const int64_t input_grad = nbytes(defined(call.outputs, 0));
  const int64_t weight_grad = nbytes(defined(call.outputs, 1));
  int64_t most = 0;
  if (input_grad > 0) {
    const auto strides = call.inputs.at(4).toIntVector();
    const bool strided = std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride > 1; });
    const int64_t scratchpad = strided ? std::min(8 * weight_copy, 2 * MiB) + 256 * KiB : 0;
    const int64_t made = blocked(input, false);
    most = std::max({most, grad_copy + weight_copy + made + scratchpad - input_grad - weight_grad, made - weight_grad});
  }
  if (weight_grad > 0) {
    const int64_t scratchpad = std::min(weight_copy, MiB) + 128 * KiB;
    most = std::max({most, input_copy + grad_copy + weight_copy + scratchpad - weight_grad, weight_copy});
  }
  return most;
}

/// The elementwise losses before they are reduced.
int64_t reduced_loss(const KernelCall& call) {
  return std::max(nbytes(defined(call.inputs, 0)), nbytes(defined(call.inputs, 1)));
}

/// A copy of what it normalises.
int64_t batch_norm_backward(const KernelCall& call) {
  return nbytes(defined(call.inputs, 1));
}

/// BLAS takes a matrix by rows or by columns; one that is neither (an expanded gradient, say) is copied first.
int64_t copy_for_blas(const at::Tensor* matrix) {
  if (matrix == nullptr || matrix->dim() < 2) {
    return 0;
  }
  const int64_t rows = matrix->size(-2);
  const int64_t columns = matrix->size(-1);
  const bool by_rows = matrix->stride(-1) == 1 && matrix->stride(-2) >= std::max<int64_t>(columns, 1);
  const bool by_columns = matrix->stride(-2) == 1 && matrix->stride(-1) >= std::max<int64_t>(rows, 1);
  return by_rows || by_columns ? 0 : matrix->numel() * static_cast<int64_t>(matrix->element_size());
}

int64_t matrix_product(const KernelCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < 3; ++i) {
    bytes += copy_for_blas(defined(call.inputs, i));
  }
  return bytes;
}

using Rule = int64_t (*)(const KernelCall&);

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::convolution", &convolution},
      {"aten::convolution_backward", &convolution_backward},
      {"aten::native_batch_norm_backward", &batch_norm_backward},
      {"aten::mm", &matrix_product},
      {"aten::addmm", &matrix_product},
      {"aten::bmm", &matrix_product},
      {"aten::baddbmm", &matrix_product},
      {"aten::mse_loss", &reduced_loss},
      {"aten::smooth_l1_loss", &reduced_loss},
      {"aten::huber_loss", &reduced_loss},
  };
  return table;
}

} // namespace

int64_t retained_bytes(const KernelCall& call) {
  static const std::unordered_set<std::string> losses = {
      "aten::mse_loss", "aten::smooth_l1_loss", "aten::binary_cross_entropy", "aten::soft_margin_loss"};
  const auto* output = defined(call.outputs, 0);
  if (losses.count(call.op) == 0 || output == nullptr || output->dim() > 0) {
    return 0;
  }
  return reduced_loss(call);
}

int64_t scratch_bytes(const KernelCall& call) {
  auto rule = rules().find(call.op);
  return rule == rules().end() ? 0 : rule->second(call);
}

} // namespace recals
