/// Kernels that only CUDA has. None of them was compared with the device: sizes are those of torch's sources, named at
/// each.

#include <algorithm>
#include <array>
#include <numeric>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// State of the generator that a kernel drew from: two numbers, or one.
at::Tensor philox(const at::Tensor& like, at::IntArrayRef sizes) {
  return make(like, sizes, at::kLong);
}

// --- attention (ATen/native/transformers/cuda/attention.cu, flash_attn/flash_api.cpp) ----------------------------------

using FlashResult =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, int64_t, int64_t, at::Tensor, at::Tensor, at::Tensor>;

FlashResult flash_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& /*value*/,
    double /*dropout*/,
    bool /*causal*/,
    bool /*return_debug_mask*/,
    std::optional<double> /*scale*/) {
  const auto s = query.sizes();
  return {
      at::empty_like(query),
      make(query, {s[0], s[1], s[2]}, at::kFloat),
      at::Tensor(),
      at::Tensor(),
      query.size(2),
      key.size(2),
      philox(query, {2}),
      philox(query, {}),
      make(query, {0})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& /*output*/,
    const at::Tensor& /*logsumexp*/,
    const at::Tensor& /*cum_seq_q*/,
    const at::Tensor& /*cum_seq_k*/,
    int64_t /*max_q*/,
    int64_t /*max_k*/,
    double /*dropout*/,
    bool /*causal*/,
    const at::Tensor& /*philox_seed*/,
    const at::Tensor& /*philox_offset*/,
    std::optional<double> /*scale*/) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

/// The logarithms are padded to multiples of 32 positions (kAlignLSE of mem_eff_attention/kernel_forward.h).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query,
    const at::Tensor& /*key*/,
    const at::Tensor& value,
    const OptionalTensor& /*mask*/,
    bool with_logsumexp,
    double /*dropout*/,
    bool /*causal*/,
    std::optional<double> /*scale*/) {
  const int64_t padded = with_logsumexp ? (query.size(2) + 31) / 32 * 32 : 0;
  return {
      head_inside(query, value.size(3)),
      make(query, {query.size(0), query.size(1), padded}, at::kFloat),
      philox(query, {}),
      philox(query, {})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& mask,
    const at::Tensor& /*output*/,
    const at::Tensor& /*logsumexp*/,
    const at::Tensor& /*philox_seed*/,
    const at::Tensor& /*philox_offset*/,
    double /*dropout*/,
    std::array<bool, 4> wanted,
    bool /*causal*/,
    std::optional<double> /*scale*/) {
  at::Tensor of_mask;
  if (mask.defined() && wanted[3]) {
    auto sizes = mask.sizes().vec();
    sizes.back() = (sizes.back() + 15) / 16 * 16;
    of_mask = make(mask, sizes).narrow(-1, 0, mask.size(-1));
  }
  return {head_inside(query, query.size(3)), head_inside(key, key.size(3)), head_inside(value, value.size(3)), of_mask};
}

// --- batch norm (ATen/native/cudnn/BatchNorm.cpp) ----------------------------------------------------------------------

/// Statistics are in the weight's dtype, which is float for halves. cuDNN's reserve is not documented; counted is the bit
/// per element that a fused activation takes, in channels-last order, the only one where torch asks for a mode with a
/// reserve. An upper bound.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& /*bias*/,
    const OptionalTensor& /*running_mean*/,
    const OptionalTensor& /*running_var*/,
    bool training,
    double /*factor*/,
    double /*epsilon*/) {
  const int64_t saved = training ? input.size(1) : 0;
  const auto format = input.suggest_memory_format();
  const int64_t reserve = training && format != at::MemoryFormat::Contiguous ? (input.numel() + 7) / 8 : 0;
  return {make_suggested(input), make(weight, {saved}), make(weight, {saved}), make(input, {reserve}, at::kByte)};
}

/// All three are made, whether they are wanted or not.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm_backward(
    const at::Tensor& input,
    const at::Tensor& /*grad*/,
    const at::Tensor& weight,
    const OptionalTensor& /*running_mean*/,
    const OptionalTensor& /*running_var*/,
    const OptionalTensor& /*saved_mean*/,
    const OptionalTensor& /*saved_variance*/,
    double /*epsilon*/,
    const at::Tensor& /*reserve*/) {
  return {make_suggested(input), make_contiguous(weight), make_contiguous(weight)};
}

// --- recurrent networks (ATen/native/cudnn/RNN.cpp) --------------------------------------------------------------------

int64_t elements(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, [](int64_t sum, const at::Tensor& tensor) {
    return sum + tensor.numel();
  });
}

/// Only cuDNN knows its reserve. Counted are, per layer, direction, step and sample, the gates, the cell's and the hidden
/// state, the cell's activation, a dropped-out output and its mask, each as large as the hidden state: an upper bound.
int64_t reserve_elements(int64_t mode, int64_t cells, int64_t hidden) {
  const int64_t gates = mode == 2 ? 4 : mode == 3 ? 4 : 1; // GRU: three, and the state's part of the third
  constexpr int64_t beside_gates = 5;
  return cells * hidden * (gates + beside_gates);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_rnn(
    const at::Tensor& input,
    const std::vector<at::Tensor>& weights,
    int64_t /*weight_stride0*/,
    const OptionalTensor& weight_buffer,
    const at::Tensor& hx,
    const OptionalTensor& cx,
    int64_t mode,
    int64_t hidden,
    int64_t projected,
    int64_t layers,
    bool batch_first,
    double /*dropout*/,
    bool train,
    bool bidirectional,
    at::IntArrayRef /*batch_sizes*/,
    const OptionalTensor& /*dropout_state*/) {
  const int64_t steps = input.size(batch_first ? 1 : 0);
  const int64_t batch = input.size(batch_first ? 0 : 1);
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t width = projected != 0 ? projected : hidden;
  auto output = make(input, {steps, batch, width * directions});
  const int64_t reserve = train ? reserve_elements(mode, layers * directions * steps * batch, hidden) : 0;
  return {
      batch_first ? output.transpose(0, 1) : output,
      make_contiguous(hx),
      defined(cx) ? make_contiguous(*cx) : make(hx, {0}),
      make(input, {reserve * static_cast<int64_t>(input.element_size())}, at::kByte),
      defined(weight_buffer) ? *weight_buffer : make(weights.at(0), {elements(weights)})};
}

/// The weights' gradients are parts of one buffer.
std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> cudnn_rnn_backward(
    const at::Tensor& input,
    const std::vector<at::Tensor>& weights,
    int64_t /*weight_stride0*/,
    const at::Tensor& /*weight_buffer*/,
    const at::Tensor& hx,
    const OptionalTensor& cx,
    const at::Tensor& /*output*/,
    const OptionalTensor& /*grad_output*/,
    const OptionalTensor& /*grad_hy*/,
    const OptionalTensor& /*grad_cy*/,
    int64_t /*mode*/,
    int64_t /*hidden*/,
    int64_t /*projected*/,
    int64_t /*layers*/,
    bool /*batch_first*/,
    double /*dropout*/,
    bool /*train*/,
    bool /*bidirectional*/,
    at::IntArrayRef /*batch_sizes*/,
    const OptionalTensor& /*dropout_state*/,
    const at::Tensor& /*reserve*/,
    std::array<bool, 4> wanted) {
  std::vector<at::Tensor> gradients;
  if (wanted[3]) {
    const auto buffer = make(weights.at(0), {elements(weights)});
    int64_t begin = 0;
    for (const auto& weight : weights) {
      gradients.push_back(buffer.narrow(0, begin, weight.numel()).view(weight.sizes()));
      begin += weight.numel();
    }
  }
  return {make_contiguous(input), make_contiguous(hx), defined(cx) ? make_contiguous(*cx) : at::Tensor(), gradients};
}

} // namespace

void add_cuda_kernels(MetaRegistrar& registrar) {
  registrar.add("_scaled_dot_product_flash_attention", &flash_attention);
  registrar.add("_scaled_dot_product_flash_attention_backward", &flash_attention_backward);
  registrar.add("_scaled_dot_product_efficient_attention", &efficient_attention);
  registrar.add("_scaled_dot_product_efficient_attention_backward", &efficient_attention_backward);
  registrar.add("cudnn_batch_norm", &cudnn_batch_norm);
  registrar.add("cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
  registrar.add("_cudnn_rnn", &cudnn_rnn);
  registrar.add("_cudnn_rnn_backward", &cudnn_rnn_backward);
}

} // namespace recals
