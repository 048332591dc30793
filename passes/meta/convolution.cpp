#include <array>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// One number may stand for all dimensions.
int64_t at_dim(at::IntArrayRef values, size_t dim) {
  return values.size() == 1 ? values[0] : values[dim];
}

/// oneDNN computes in channels-last if one operand is; the kernels for double do so in two dimensions only.
at::MemoryFormat format_of(const at::Tensor& input, const at::Tensor& weight) {
  const auto one = input.suggest_memory_format();
  const auto other = weight.suggest_memory_format();
  if (one == at::MemoryFormat::ChannelsLast || other == at::MemoryFormat::ChannelsLast) {
    return at::MemoryFormat::ChannelsLast;
  }
  const bool is_double = input.scalar_type() == at::kDouble || weight.scalar_type() == at::kDouble;
  if (!is_double && (one == at::MemoryFormat::ChannelsLast3d || other == at::MemoryFormat::ChannelsLast3d)) {
    return at::MemoryFormat::ChannelsLast3d;
  }
  return at::MemoryFormat::Contiguous;
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& /*bias*/,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups) {
  TORCH_CHECK(
      input.dim() == weight.dim() && input.dim() > 2,
      "convolution: input ",
      input.sizes(),
      " and weight ",
      weight.sizes(),
      " do not go together");
  const int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(
      input.size(1) == channels,
      "convolution: given groups=",
      groups,
      ", weight of size ",
      weight.sizes(),
      ", expected input ",
      input.sizes(),
      " to have ",
      channels,
      " channels");
  at::DimVector sizes{input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const int64_t reach = at_dim(dilation, d - 2) * (weight.size(d) - 1) + 1;
    const int64_t pad = 2 * at_dim(padding, d - 2);
    const int64_t step = at_dim(stride, d - 2);
    sizes.push_back(
        transposed ? (input.size(d) - 1) * step - pad + reach + at_dim(output_padding, d - 2)
                   : (input.size(d) + pad - reach) / step + 1);
  }
  return make(input, sizes, format_of(input, weight));
}

/// What torch.jit.trace records in place of convolution. It has no derivative of its own: that of convolution is recorded.
at::Tensor traced_convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const OptionalTensor& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups,
    bool /*benchmark*/,
    bool /*deterministic*/,
    bool /*cudnn_enabled*/,
    bool /*allow_tf32*/) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::OptionalIntArrayRef /*bias_sizes*/,
    at::IntArrayRef /*stride*/,
    at::IntArrayRef /*padding*/,
    at::IntArrayRef /*dilation*/,
    bool /*transposed*/,
    at::IntArrayRef /*output_padding*/,
    int64_t /*groups*/,
    std::array<bool, 3> wanted) {
  const auto format = format_of(input, weight);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads;
  if (wanted[0]) {
    std::get<0>(grads) = make(grad_output, input.sizes(), format);
  }
  if (wanted[1]) {
    std::get<1>(grads) = make(grad_output, weight.sizes(), format);
  }
  if (wanted[2]) {
    std::get<2>(grads) = make(grad_output, {grad_output.size(1)});
  }
  return grads;
}

} // namespace

void add_convolution_kernels(MetaRegistrar& registrar) {
  registrar.add("convolution", &convolution);
  registrar.add("_convolution", &traced_convolution);
  registrar.add("convolution_backward", &convolution_backward);
}

} // namespace recals
