#include "passes/meta/rnn.h"
#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

// Note [Workspace of oneDNN's LSTM]
// Read off its sizes: gates, hidden states, three times the states of the layer below and this one, twice the cell
// states; rows are padded to 64 bytes, once more where they would fall on the same cache sets, and each part to pages.

namespace {

constexpr int64_t kFloatBytes = 4;
constexpr int64_t kPage = 4096;

int64_t pages(int64_t floats) {
  return (floats * kFloatBytes + kPage - 1) / kPage * kPage;
}

} // namespace

int64_t lstm_row(int64_t floats) {
  constexpr int64_t line = 16;
  const int64_t padded = (floats + line - 1) / line * line;
  return padded % 256 == 0 ? padded + line : padded;
}

int64_t lstm_gates_bytes(int64_t steps, int64_t batch, int64_t hidden) {
  return pages(steps * batch * lstm_row(4 * hidden));
}

namespace {

int64_t workspace_bytes(int64_t steps, int64_t batch, int64_t inside, int64_t hidden) {
  const int64_t states = 2 * (steps + 1) * batch;
  return lstm_gates_bytes(steps, batch, hidden) + pages(steps * batch * lstm_row(hidden)) +
      3 * pages(states * lstm_row(std::max(inside, hidden))) + 2 * pages(states * hidden);
}

/// `input`: [steps, batch, inside]; hidden and cell state: [batch, hidden].
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mkldnn_rnn_layer(
    const at::Tensor& input,
    const at::Tensor& /*weight0*/,
    const at::Tensor& /*weight1*/,
    const at::Tensor& /*weight2*/,
    const at::Tensor& /*weight3*/,
    const at::Tensor& hx,
    const at::Tensor& cx,
    bool /*reverse*/,
    at::IntArrayRef /*batch_sizes*/,
    int64_t /*mode*/,
    int64_t hidden_size,
    int64_t /*num_layers*/,
    bool /*has_biases*/,
    bool /*bidirectional*/,
    bool /*batch_first*/,
    bool train) {
  const int64_t bytes = train ? workspace_bytes(input.size(0), input.size(1), input.size(2), hidden_size) : 0;
  return {
      make(input, {input.size(0), input.size(1), hidden_size}),
      make_contiguous(hx),
      make_contiguous(cx),
      make(input, {bytes}, at::kByte)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
mkldnn_rnn_layer_backward(
    const at::Tensor& input,
    const at::Tensor& weight1,
    const at::Tensor& weight2,
    const at::Tensor& weight3,
    const at::Tensor& /*weight4*/,
    const at::Tensor& hx,
    const at::Tensor& cx,
    const at::Tensor& /*output*/,
    const at::Tensor& /*hy*/,
    const at::Tensor& /*cy*/,
    const OptionalTensor& /*grad_output*/,
    const OptionalTensor& /*grad_hy*/,
    const OptionalTensor& /*grad_cy*/,
    bool /*reverse*/,
    int64_t /*mode*/,
    int64_t /*hidden_size*/,
    int64_t /*num_layers*/,
    bool /*has_biases*/,
    bool /*train*/,
    bool /*bidirectional*/,
    at::IntArrayRef /*batch_sizes*/,
    bool /*batch_first*/,
    const at::Tensor& /*workspace*/) {
  auto bias = make_contiguous(weight3); // one for both
  return {
      make_contiguous(input),
      make_contiguous(weight1),
      make_contiguous(weight2),
      bias,
      bias,
      make_contiguous(hx),
      make_contiguous(cx)};
}

} // namespace

void add_rnn_kernels(MetaRegistrar& registrar) {
  registrar.add("mkldnn_rnn_layer", &mkldnn_rnn_layer);
  registrar.add("mkldnn_rnn_layer_backward", &mkldnn_rnn_layer_backward);
}

} // namespace recals
