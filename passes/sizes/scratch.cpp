#include "passes/sizes/scratch.h"

/// Scratch memory of CPU kernels, found by measuring each op's allocations (test/python/test_memory.py compares).
/// Convolutions have a file of their own, convolution_scratch.cpp.

#include <algorithm>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include <ATen/Parallel.h>

#include "passes/meta/rnn.h"

namespace recals {

const at::Tensor* defined(const std::vector<c10::IValue>& values, size_t i) {
  return i < values.size() && values[i].isTensor() && values[i].toTensor().defined() ? &values[i].toTensor() : nullptr;
}

int64_t nbytes(const at::Tensor* tensor) {
  return tensor == nullptr ? 0 : static_cast<int64_t>(tensor->nbytes());
}

int64_t threads() {
  return std::max<int64_t>(at::get_num_threads(), std::thread::hardware_concurrency());
}

namespace {

constexpr int64_t KiB = 1024;

/// The elementwise losses before they are reduced.
int64_t elementwise_loss(const KernelCall& call) {
  return std::max(nbytes(defined(call.inputs, 0)), nbytes(defined(call.inputs, 1)));
}

} // namespace

int64_t reduced_loss(const KernelCall& call) {
  return elementwise_loss(call) + 64;
}

namespace {

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

/// oneDNN multiplies matrices of 16-bit floats: each thread has a block of sums, one of the right matrix, and one of the
/// left matrix unless that is laid out by rows.
int64_t blocks_of_halves(const at::Tensor& left, const at::Tensor& right) {
  const int64_t rows = left.size(-2);
  const int64_t inner = round_up(left.size(-1), 32);
  const int64_t columns = right.size(-1);
  const int64_t depth = columns <= 32 ? inner : std::min<int64_t>(inner, 1024);
  const int64_t sums = std::min<int64_t>(rows, columns <= 32 ? rows : 256) * std::min<int64_t>(columns, 64) * 4;
  const int64_t of_left = left.stride(-1) == 1 ? 0 : std::min<int64_t>(rows, inner < 1024 ? 320 : 640) * depth * 2;
  return threads() * (sums + depth * 160 + of_left + 2 * KiB);
}

} // namespace

int64_t copies_for_blas(const KernelCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < 3; ++i) {
    bytes += copy_for_blas(defined(call.inputs, i));
  }
  return bytes;
}

namespace {

int64_t matrix_product(const KernelCall& call) {
  int64_t bytes = copies_for_blas(call);
  std::vector<const at::Tensor*> matrices;
  for (size_t i = 0; i < 3; ++i) {
    const auto* operand = defined(call.inputs, i);
    if (operand != nullptr && operand->dim() >= 2) {
      matrices.push_back(operand);
    }
  }
  if (matrices.size() >= 2 && matrices.back()->element_size() == 2) {
    bytes += blocks_of_halves(*matrices[matrices.size() - 2], *matrices.back());
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

/// The block of queries that a thread of the CPU's flash attention works on, and the keys beside it.
std::pair<int64_t, int64_t> attention_blocks(const at::Tensor& query, const at::Tensor& key) {
  const int64_t length = query.size(-2);
  return {length >= 768 ? 256 : length >= 192 ? 64 : 32, std::min<int64_t>(512, key.size(-2))};
}

/// Bytes of the numbers that it adds up in.
int64_t attention_number(const at::Tensor& query) {
  return static_cast<int64_t>(query.scalar_type() == at::kDouble ? sizeof(double) : sizeof(float));
}

/// Scores, two statistics of each row, and the result of a block.
int64_t flash_attention(const KernelCall& call) {
  const auto* query = defined(call.inputs, 0);
  const auto* key = defined(call.inputs, 1);
  if (query == nullptr || key == nullptr || query->dim() < 4) {
    return 0;
  }
  const auto [rows, columns] = attention_blocks(*query, *key);
  return threads() * attention_number(*query) * (rows * columns + 2 * rows + rows * query->size(-1));
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
  return threads() * attention_number(*query) * 2 * rows * columns + nbytes(gradient) + KiB;
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

/// The mean of 16-bit floats is the sum of a copy in float.
int64_t mean(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  const auto* output = defined(call.outputs, 0);
  if (input == nullptr || output == nullptr || !at::isReducedFloatingType(input->scalar_type())) {
    return converting_reduction(call);
  }
  return (input->numel() + output->numel()) * static_cast<int64_t>(sizeof(float)) + 64;
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

/// Powers of the matrices and polynomials of them; how many depends on their norms.
int64_t matrix_exponential(const KernelCall& call) {
  return 12 * nbytes(defined(call.inputs, 0)) + KiB;
}

/// The matrices by columns, their vectors before those are complex, and LAPACK's working space.
int64_t eigenvalues(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  constexpr int64_t rows = 390; // LAPACK's own choice for up to hundreds of columns
  return input == nullptr || input->dim() < 2
      ? 0
      : 2 * nbytes(input) + rows * input->size(-1) * static_cast<int64_t>(input->element_size());
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

/// Weights in padded rows, the gates, the bias, and what oneDNN needs for itself.
int64_t lstm_layer(const at::Tensor& input, int64_t hidden) {
  const int64_t inside = input.size(2);
  const int64_t gates = lstm_row(4 * hidden);
  return 4 * (4 * hidden + (inside + hidden) * gates + input.size(1) * hidden) +
      lstm_gates_bytes(input.size(0), input.size(1), hidden) + 18 * KiB;
}

int64_t lstm_forward(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  return input == nullptr || input->dim() != 3 ? 0 : lstm_layer(*input, call.inputs.at(10).toInt());
}

/// The gradients of weights whose rows are padded are made in padded rows, too.
int64_t lstm_backward(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  if (input == nullptr || input->dim() != 3) {
    return 0;
  }
  const int64_t hidden = call.inputs.at(15).toInt();
  const int64_t padded = hidden % 16 == 0 ? 0 : (input->size(2) + hidden) * (lstm_row(4 * hidden) + 16);
  const auto* gradient = defined(call.inputs, 10);
  const int64_t copy = gradient == nullptr || gradient->is_contiguous() ? 0 : nbytes(gradient);
  return lstm_layer(*input, hidden) + copy + 4 * (padded + 4 * hidden + 2 * input->size(1) * hidden);
}

/// What a loss that is made of other ops holds on its way.
int64_t four_of_the_input(const KernelCall& call) {
  return 4 * nbytes(defined(call.inputs, 0));
}

/// Scattered in float.
int64_t in_float(const KernelCall& call) {
  const auto* output = defined(call.outputs, 0);
  return output == nullptr || !at::isReducedFloatingType(output->scalar_type())
      ? 0
      : output->numel() * static_cast<int64_t>(sizeof(float));
}

/// Works on a copy with one element after the other.
int64_t contiguous_copy(const KernelCall& call) {
  const auto* input = defined(call.inputs, 0);
  return input == nullptr || input->is_contiguous() ? 0 : nbytes(input);
}

/// A copy across rows and columns goes through a block of 60 by 60.
int64_t transposed_block(const KernelCall& call) {
  const auto* to = defined(call.inputs, 0);
  const auto* from = defined(call.inputs, 1);
  const bool across = to != nullptr && from != nullptr && to->dim() >= 2 && to->strides() != from->strides();
  return across ? 60 * 60 * static_cast<int64_t>(to->element_size()) : 0;
}

using Rule = int64_t (*)(const KernelCall&);

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::convolution", &convolution_scratch},
      {"aten::convolution_backward", &convolution_backward_scratch},
      {"aten::mkldnn_rnn_layer", &lstm_forward},
      {"aten::mkldnn_rnn_layer_backward", &lstm_backward},
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
      {"aten::mean", &mean},
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
      {"aten::median", &contiguous_copy},
      {"aten::nanmedian", &contiguous_copy},
      {"aten::_euclidean_dist", &euclidean_distance},
      {"aten::linalg_matrix_exp", &matrix_exponential},
      {"aten::linalg_eig", &eigenvalues},
      {"aten::_linalg_eigvals", &eigenvalues},
      {"aten::binary_cross_entropy_with_logits", &four_of_the_input},
      {"aten::cosine_embedding_loss", &four_of_the_input},
      {"aten::cummaxmin_backward", &in_float},
      {"aten::gather_backward", &in_float},
      {"aten::value_selecting_reduction_backward", &in_float},
      {"aten::copy_", &transposed_block},
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

/// Kernels that copy an operand which is not laid out one element after the other (the expanded gradient of a sum, say).
bool takes_contiguous(const std::string& op) {
  static const std::unordered_set<std::string> names = {
      "aten::_adaptive_avg_pool2d_backward",
      "aten::_adaptive_avg_pool3d_backward",
      "aten::_log_softmax_backward_data",
      "aten::_softmax_backward_data",
      "aten::adaptive_max_pool2d_backward",
      "aten::adaptive_max_pool3d_backward",
      "aten::avg_pool2d_backward",
      "aten::avg_pool3d_backward",
      "aten::col2im",
      "aten::embedding_dense_backward",
      "aten::fractional_max_pool2d_backward",
      "aten::fractional_max_pool3d_backward",
      "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d_backward",
      "aten::im2col",
      "aten::max_pool2d_with_indices_backward",
      "aten::max_pool3d_with_indices_backward",
      "aten::native_batch_norm_backward",
      "aten::native_group_norm_backward",
      "aten::native_layer_norm_backward",
      "aten::reflection_pad1d_backward",
      "aten::reflection_pad2d_backward",
      "aten::reflection_pad3d_backward",
      "aten::replication_pad1d_backward",
      "aten::replication_pad2d_backward",
      "aten::replication_pad3d_backward",
      "aten::upsample_bicubic2d_backward",
      "aten::upsample_bilinear2d_backward",
      "aten::upsample_linear1d_backward",
      "aten::upsample_nearest1d_backward",
      "aten::upsample_nearest2d_backward",
      "aten::upsample_nearest3d_backward",
      "aten::upsample_trilinear3d_backward",
  };
  return names.count(op) > 0;
}

bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg();
}

/// What the kernel itself copies before it reads.
int64_t copies_of_operands(const KernelCall& call) {
  int64_t bytes = 0;
  if (takes_contiguous(call.op)) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const auto* operand = defined(call.inputs, i);
      if (operand != nullptr && !is_lazy(*operand) && !operand->is_non_overlapping_and_dense()) {
        bytes += nbytes(operand);
      }
    }
  }
  return bytes;
}

constexpr int64_t kNumbers = 16; ///< bytes of single numbers that an op wraps on its way

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

int64_t copies_of_lazy_operands(const KernelCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto* operand = defined(call.inputs, i);
    if (operand != nullptr && is_lazy(*operand)) {
      bytes += nbytes(operand);
    }
  }
  return bytes;
}

int64_t scratch_bytes(const KernelCall& call) {
  auto rule = rules().find(call.op);
  return kNumbers + copies_of_operands(call) + (rule == rules().end() ? 0 : rule->second(call));
}

} // namespace recals
