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
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include <ATen/Parallel.h>

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

/// oneDNN does not take doubles: the columns of the whole batch are laid out.
int64_t columns(const at::Tensor* output, const at::Tensor* weight) {
  if (output == nullptr || weight == nullptr || weight->size(0) == 0 || output->size(1) == 0 ||
      output->scalar_type() != c10::kDouble) {
    return 0;
  }
  return nbytes(output) / output->size(1) * (weight->numel() / weight->size(0)) + nbytes(weight);
}

/// Groups are widened to blocks of 16 x 16 channels for the weight's gradient (seen for kernels larger than 3 x 3).
int64_t widened_groups(const at::Tensor* weight) {
  const bool depthwise = weight != nullptr && weight->dim() > 3 && weight->size(1) == 1;
  return depthwise && weight->numel() > 9 * weight->size(0) ? 258 * nbytes(weight) : 0;
}

int64_t convolution(const KernelCall& call) {
  const bool transposed = call.inputs.at(6).toBool();
  const auto* output = defined(call.outputs, 0);
  const int64_t input_copy = blocked(defined(call.inputs, 0), true);
  const int64_t weight_copy = blocked_weight(defined(call.inputs, 1));
  const int64_t output_copy = blocked(output, false);
  const int64_t own = transposed ? 0 : nbytes(output);
  return std::max(
      {input_copy + weight_copy + output_copy - own, output_copy, columns(output, defined(call.inputs, 1))});
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
    const auto dilations = call.inputs.at(6).toIntVector();
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t step) { return step > 1; });
    const int64_t scratchpad = std::min(weight_copy, MiB) + 128 * KiB + (dilated ? 6 * weight_copy : 0) +
        widened_groups(defined(call.inputs, 2));
    most = std::max({most, input_copy + grad_copy + weight_copy + scratchpad - weight_grad, weight_copy});
  }
  return most + 2 * columns(defined(call.inputs, 0), defined(call.inputs, 2));
}

/// The elementwise losses before they are reduced.
int64_t elementwise_loss(const KernelCall& call) {
  return std::max(nbytes(defined(call.inputs, 0)), nbytes(defined(call.inputs, 1)));
}

int64_t reduced_loss(const KernelCall& call) {
  return elementwise_loss(call) + 64; // and some single numbers
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

/// Two sums for each channel of each sample.
int64_t group_norm_backward(const KernelCall& call) {
  const auto* input = defined(call.inputs, 1);
  if (input == nullptr || input->dim() < 2) {
    return 0;
  }
  return 2 * input->size(0) * input->size(1) * static_cast<int64_t>(input->element_size());
}

/// Four sums for each channel.
int64_t batch_norm(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  return input == nullptr || input->dim() < 2 ? 0 : 4 * input->size(1) * static_cast<int64_t>(sizeof(double));
}

/// As many as may work on an op: the number of the moment may be raised before the step.
int64_t threads() {
  return std::max<int64_t>(at::get_num_threads(), std::thread::hardware_concurrency());
}

/// The block of queries that a thread of the CPU's flash attention works on, and the keys beside it.
std::pair<int64_t, int64_t> attention_blocks(const at::Tensor& query, const at::Tensor& key) {
  const int64_t length = query.size(-2);
  return {length >= 768 ? 256 : length >= 192 ? 64 : 32, std::min<int64_t>(512, key.size(-2))};
}

/// Scores, two statistics of each row, and the result of a block, in float.
int64_t flash_attention(const KernelCall& call) {
  const auto* query = defined(call.inputs, 0);
  const auto* key = defined(call.inputs, 1);
  if (query == nullptr || key == nullptr || query->dim() < 4) {
    return 0;
  }
  const auto [rows, columns] = attention_blocks(*query, *key);
  return threads() * static_cast<int64_t>(sizeof(float)) * (rows * columns + 2 * rows + rows * query->size(-1));
}

/// Two blocks of scores, and a copy of the gradient if it is not laid out as the result.
int64_t flash_attention_backward(const KernelCall& call) {
  const auto* gradient = defined(call.inputs, 0);
  const auto* query = defined(call.inputs, 1);
  const auto* key = defined(call.inputs, 2);
  if (query == nullptr || key == nullptr || query->dim() < 4) {
    return 0;
  }
  const auto [rows, columns] = attention_blocks(*query, *key);
  return threads() * static_cast<int64_t>(sizeof(float)) * 2 * rows * columns + nbytes(gradient) + KiB;
}

/// The gradients of weight and bias, once for each thread.
int64_t layer_norm_backward(const KernelCall& call) {
  return 2 * threads() * (nbytes(defined(call.outputs, 1)) + nbytes(defined(call.outputs, 2)));
}

/// As much again as input and output: upsampling works on both in channels-last order, logsumexp on exponentials.
int64_t input_and_output(const KernelCall& call) {
  return nbytes(defined(call.inputs, 0)) + nbytes(defined(call.outputs, 0));
}

/// A reduction in another dtype than its input's (sums of booleans) converts the input first.
int64_t converting_reduction(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  const auto* output = defined(call.outputs, 0);
  if (input == nullptr || output == nullptr || input->scalar_type() == output->scalar_type()) {
    return 0;
  }
  return input->numel() * static_cast<int64_t>(output->element_size()) + 64;
}

/// Elementwise ops on mixed dtypes convert the inputs that are not of the dtype they compute in.
int64_t mixed_dtypes(const KernelCall& call) {
  std::vector<const at::Tensor*> tensors;
  c10::ScalarType common = c10::kBool;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto* tensor = defined(call.inputs, i);
    if (tensor != nullptr && tensor->dim() > 0) {
      tensors.push_back(tensor);
      common = c10::promoteTypes(common, tensor->scalar_type());
    }
  }
  int64_t bytes = 0;
  for (const auto* tensor : tensors) {
    if (tensor->scalar_type() != common) {
      bytes += tensor->numel() * static_cast<int64_t>(c10::elementSize(common));
    }
  }
  return bytes;
}

/// A copy of the values and one of their positions.
int64_t selection(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  return input == nullptr ? 0 : nbytes(input) + input->numel() * static_cast<int64_t>(sizeof(int64_t));
}

/// Both inputs with two more columns.
int64_t euclidean_distance(const KernelCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < 2; ++i) {
    const auto* input = defined(call.inputs, i);
    if (input != nullptr && input->dim() > 0 && input->size(-1) > 0) {
      bytes += nbytes(input) / input->size(-1) * (input->size(-1) + 2);
    }
  }
  return bytes;
}

using Rule = int64_t (*)(const KernelCall&);

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::convolution", &convolution},
      {"aten::convolution_backward", &convolution_backward},
      {"aten::native_batch_norm", &batch_norm},
      {"aten::native_batch_norm_backward", &batch_norm_backward},
      {"aten::native_group_norm_backward", &group_norm_backward},
      {"aten::native_layer_norm_backward", &layer_norm_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", &flash_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &flash_attention_backward},
      {"aten::upsample_bilinear2d", &input_and_output},
      {"aten::upsample_bicubic2d", &input_and_output},
      {"aten::upsample_nearest2d", &input_and_output},
      {"aten::_upsample_bilinear2d_aa", &input_and_output},
      {"aten::sum", &converting_reduction},
      {"aten::mean", &converting_reduction},
      {"aten::prod", &converting_reduction},
      {"aten::cumsum", &converting_reduction},
      {"aten::cumprod", &converting_reduction},
      {"aten::nansum", &converting_reduction},
      {"aten::add", &mixed_dtypes},
      {"aten::sub", &mixed_dtypes},
      {"aten::mul", &mixed_dtypes},
      {"aten::div", &mixed_dtypes},
      {"aten::pow", &mixed_dtypes},
      {"aten::maximum", &mixed_dtypes},
      {"aten::minimum", &mixed_dtypes},
      {"aten::addcmul", &mixed_dtypes},
      {"aten::addcdiv", &mixed_dtypes},
      {"aten::lerp", &mixed_dtypes},
      {"aten::eq", &mixed_dtypes},
      {"aten::ne", &mixed_dtypes},
      {"aten::lt", &mixed_dtypes},
      {"aten::le", &mixed_dtypes},
      {"aten::gt", &mixed_dtypes},
      {"aten::ge", &mixed_dtypes},
      {"aten::logsumexp", &input_and_output},
      {"aten::kthvalue", &selection},
      {"aten::_euclidean_dist", &euclidean_distance},
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
  return elementwise_loss(call);
}

int64_t scratch_bytes(const KernelCall& call) {
  auto rule = rules().find(call.op);
  return rule == rules().end() ? 0 : rule->second(call);
}

} // namespace recals
