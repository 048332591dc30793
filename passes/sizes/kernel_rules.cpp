#include "passes/sizes/kernel_rules.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <ATen/ATen.h>

namespace recals {

namespace {

const at::Tensor* tensor_at(const std::vector<c10::IValue>& values, size_t i) {
  if (i >= values.size() || !values[i].isTensor() || !values[i].toTensor().defined()) {
    return nullptr;
  }
  return &values[i].toTensor();
}

int64_t numel_at(const std::vector<c10::IValue>& values, size_t i) {
  const auto* tensor = tensor_at(values, i);
  return tensor == nullptr ? 0 : tensor->numel();
}

void add_bytes(const c10::IValue& value, int64_t& bytes) {
  if (value.isTensor() && value.toTensor().defined()) {
    bytes += static_cast<int64_t>(value.toTensor().nbytes());
  } else if (value.isTensorList()) {
    for (const auto& tensor : value.toTensorVector()) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
}

/// 2 * (rows of a) * (columns of b) * (common), from the tensors at positions a and b, batched or not.
double matmul_flops(const KernelCall& call, size_t a, size_t b) {
  const auto* left = tensor_at(call.inputs, a);
  const auto* right = tensor_at(call.inputs, b);
  if (left == nullptr || right == nullptr || right->dim() == 0) {
    return 0;
  }
  return 2.0 * static_cast<double>(left->numel()) * static_cast<double>(right->dim() > 1 ? right->size(-1) : 1);
}

/// `output`: the tensor of the convolution's result shape. Per output element: weights of one output channel.
double convolution_flops(const at::Tensor* output, const at::Tensor* weight) {
  if (output == nullptr || weight == nullptr || weight->size(0) == 0) {
    return 0;
  }
  return 2.0 * static_cast<double>(output->numel()) * static_cast<double>(weight->numel() / weight->size(0));
}

/// Scores and their product with the values, of the queries at `query` and the two that follow it.
double attention_flops(const KernelCall& call, size_t query) {
  const auto* queries = tensor_at(call.inputs, query);
  const auto* keys = tensor_at(call.inputs, query + 1);
  const auto* values = tensor_at(call.inputs, query + 2);
  if (queries == nullptr || keys == nullptr || values == nullptr || queries->dim() != 4) {
    return 0;
  }
  const auto rows = static_cast<double>(queries->size(0) * queries->size(1) * queries->size(2));
  return 2.0 * rows * static_cast<double>(keys->size(2)) * static_cast<double>(queries->size(3) + values->size(3));
}

/// Every weight works on every step of every sample.
double recurrent_flops(const KernelCall& call) {
  const auto* input = tensor_at(call.inputs, 0);
  double weights = 0;
  for (const auto& weight : call.inputs.at(1).toTensorVector()) {
    weights += static_cast<double>(weight.numel());
  }
  return input == nullptr || input->dim() != 3 ? 0
                                               : 2.0 * static_cast<double>(input->size(0) * input->size(1)) * weights;
}

using Flops = double (*)(const KernelCall&);
const std::unordered_map<std::string, Flops>& flops_table() {
  static const std::unordered_map<std::string, Flops> table = {
      {"aten::mm", [](const KernelCall& c) { return matmul_flops(c, 0, 1); }},
      {"aten::mv", [](const KernelCall& c) { return matmul_flops(c, 0, 1); }},
      {"aten::dot", [](const KernelCall& c) { return matmul_flops(c, 0, 1); }},
      {"aten::bmm", [](const KernelCall& c) { return matmul_flops(c, 0, 1); }},
      {"aten::addmm", [](const KernelCall& c) { return matmul_flops(c, 1, 2); }},
      {"aten::baddbmm", [](const KernelCall& c) { return matmul_flops(c, 1, 2); }},
      {"aten::convolution",
       [](const KernelCall& c) {
         return convolution_flops(c.outputs.empty() ? nullptr : &c.outputs[0].toTensor(), tensor_at(c.inputs, 1));
       }},
      {"aten::convolution_backward",
       [](const KernelCall& c) { return 2 * convolution_flops(tensor_at(c.inputs, 0), tensor_at(c.inputs, 2)); }},
      {"aten::_scaled_dot_product_flash_attention", [](const KernelCall& c) { return attention_flops(c, 0); }},
      {"aten::_scaled_dot_product_efficient_attention", [](const KernelCall& c) { return attention_flops(c, 0); }},
      // The scores once more, and twice the products.
      {"aten::_scaled_dot_product_flash_attention_backward",
       [](const KernelCall& c) { return 2.5 * attention_flops(c, 1); }},
      {"aten::_scaled_dot_product_efficient_attention_backward",
       [](const KernelCall& c) { return 2.5 * attention_flops(c, 1); }},
      {"aten::_cudnn_rnn", &recurrent_flops},
      {"aten::_cudnn_rnn_backward", [](const KernelCall& c) { return 2 * recurrent_flops(c); }},
  };
  return table;
}

const std::unordered_map<std::string, ElementKind>& element_kinds() {
  static const std::unordered_map<std::string, ElementKind> table = [] {
    const std::pair<ElementKind, std::vector<const char*>> groups[] = {
        {ElementKind::Random,
         {"bernoulli_",
          "bernoulli",
          "native_dropout",
          "rand",
          "rand_like",
          "randn",
          "randn_like",
          "normal_",
          "uniform_",
          "exponential_",
          "multinomial",
          "rrelu_with_noise",
          "randint",
          "randperm",
          "normal"}},
        {ElementKind::Transcendental,
         {"exp",      "log", "tanh", "sigmoid",   "gelu",          "gelu_backward", "erf",      "sin",
          "cos",      "pow", "silu", "mish",      "silu_backward", "log1p",         "_softmax", "_log_softmax",
          "softplus", "elu", "sqrt", "logsumexp", "expm1",         "rsqrt"}},
        {ElementKind::BatchNorm,
         {"native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward"}},
        {ElementKind::Pooling,
         {"max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward"}},
    };
    std::unordered_map<std::string, ElementKind> kinds;
    for (const auto& [kind, ops] : groups) {
      for (const auto* op : ops) {
        kinds[std::string("aten::") + op] = kind;
      }
    }
    return kinds;
  }();
  return table;
}

const std::unordered_map<std::string, WorkKind>& kinds() {
  static const std::unordered_map<std::string, WorkKind> table = {
      {"aten::mm", WorkKind::Matmul},
      {"aten::mv", WorkKind::Matmul},
      {"aten::dot", WorkKind::Matmul},
      {"aten::bmm", WorkKind::Matmul},
      {"aten::addmm", WorkKind::Matmul},
      {"aten::baddbmm", WorkKind::Matmul},
      {"aten::_scaled_dot_product_flash_attention", WorkKind::Matmul},
      {"aten::_scaled_dot_product_flash_attention_backward", WorkKind::Matmul},
      {"aten::_scaled_dot_product_efficient_attention", WorkKind::Matmul},
      {"aten::_scaled_dot_product_efficient_attention_backward", WorkKind::Matmul},
      {"aten::_cudnn_rnn", WorkKind::Matmul},
      {"aten::_cudnn_rnn_backward", WorkKind::Matmul},
      {"aten::cudnn_batch_norm", WorkKind::Reduction},
      {"aten::cudnn_batch_norm_backward", WorkKind::Reduction},
      {"aten::convolution", WorkKind::Convolution},
      {"aten::convolution_backward", WorkKind::Convolution},
      {"aten::sum", WorkKind::Reduction},
      {"aten::mean", WorkKind::Reduction},
      {"aten::amax", WorkKind::Reduction},
      {"aten::var_mean", WorkKind::Reduction},
      {"aten::_softmax", WorkKind::Reduction},
      {"aten::_softmax_backward_data", WorkKind::Reduction},
      {"aten::_log_softmax", WorkKind::Reduction},
      {"aten::_log_softmax_backward_data", WorkKind::Reduction},
      {"aten::native_layer_norm", WorkKind::Reduction},
      {"aten::native_layer_norm_backward", WorkKind::Reduction},
      {"aten::native_group_norm", WorkKind::Reduction},
      {"aten::native_group_norm_backward", WorkKind::Reduction},
      {"aten::native_batch_norm", WorkKind::Reduction},
      {"aten::native_batch_norm_backward", WorkKind::Reduction},
      {"aten::copy_", WorkKind::Copy},
      {"aten::clone", WorkKind::Copy},
      {"aten::_to_copy", WorkKind::Copy},
      {"aten::cat", WorkKind::Copy},
      {"aten::fill_", WorkKind::Copy},
      {"aten::zero_", WorkKind::Copy},
      {"aten::zeros", WorkKind::Copy},
      {"aten::zeros_like", WorkKind::Copy},
      {"aten::ones_like", WorkKind::Copy},
  };
  return table;
}

/// Shows an input's storage: nothing is read or written.
bool is_view(const KernelCall& call) {
  const auto* output = tensor_at(call.outputs, 0);
  const auto* input = tensor_at(call.inputs, 0);
  const bool sums = call.op == "aten::add"; // into its first operand (Note [Sums of gradients] in recorder.cpp)
  return output != nullptr && input != nullptr && call.op.back() != '_' && !sums && output->has_storage() &&
      input->has_storage() && output->is_alias_of(*input);
}

} // namespace

bool runs_as_one(const std::string& op) {
  // Some backwards scatter into a tensor of zeros, which they do otherwise on meta: Note [Derivatives that write] of
  // passes/meta/cpp_forms.cpp.
  static const std::unordered_set<std::string> ops = {
      "aten::convolution",
      "aten::binary_cross_entropy_with_logits",
      "aten::convolution_backward",
      "aten::copy_",
      "aten::cosine_embedding_loss",
      "aten::cummaxmin_backward",
      "aten::gather_backward",
      "aten::index_select_backward",
      "aten::masked_select_backward",
      "aten::trace_backward",
      "aten::cudnn_batch_norm",
      "aten::cudnn_batch_norm_backward",
      "aten::_cudnn_rnn",
      "aten::_cudnn_rnn_backward",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_flash_attention_backward",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_efficient_attention_backward",
      "aten::value_selecting_reduction_backward"};
  return ops.count(op) > 0;
}

Work work_of(const KernelCall& call) {
  Work work;
  // How a meta kernel copies is its own affair: in some processes it calls copy_, in others it does not.
  if (call.op == "aten::copy_" || call.op.rfind("aten::empty", 0) == 0 || call.op == "aten::set_" || is_view(call)) {
    return work;
  }
  auto flops = flops_table().find(call.op);
  if (flops != flops_table().end()) {
    work.flops = flops->second(call);
  }
  for (const auto& input : call.inputs) {
    add_bytes(input, work.bytes);
  }
  int64_t written = 0;
  for (const auto& output : call.outputs) {
    add_bytes(output, written);
  }
  work.bytes += written;
  if (const auto kind = kinds().find(call.op); kind != kinds().end()) {
    work.kind = kind->second;
  }
  if (const auto* output = tensor_at(call.outputs, 0)) {
    work.dtype = output->scalar_type();
  }
  if (const auto kind = element_kinds().find(call.op); kind != element_kinds().end()) {
    work.element_kind = kind->second;
    work.elements = numel_at(call.outputs, 0);
    if (work.element_kind == ElementKind::Pooling && call.op.ends_with("_backward")) {
      work.elements = numel_at(call.inputs, 0); // the gradient, not the larger result
    }
  }
  return work;
}

} // namespace recals
