#include <ATen/OpMathType.h>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// Sizes of `like`, in memory as [batch, position, head, channel].
at::Tensor head_inside(const at::Tensor& like) {
  const auto s = like.sizes();
  return at::empty_strided(s, {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1}, like.options());
}

std::tuple<at::Tensor, at::Tensor> flash_attention(
    const at::Tensor& query,
    const at::Tensor& /*key*/,
    const at::Tensor& /*value*/,
    double /*dropout*/,
    bool /*causal*/,
    const OptionalTensor& /*mask*/,
    std::optional<double> /*scale*/) {
  const auto s = query.sizes();
  const auto type = at::toOpMathType(query.scalar_type());
  return {
      at::empty_like(query),
      at::empty_strided({s[0], s[1], s[2]}, {s[2] * s[1], 1, s[1]}, query.options().dtype(type))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& /*output*/,
    const at::Tensor& /*logsumexp*/,
    double /*dropout*/,
    bool /*causal*/,
    const OptionalTensor& /*mask*/,
    std::optional<double> /*scale*/) {
  return {head_inside(query), head_inside(key), head_inside(value)};
}

} // namespace

void add_attention_kernels(MetaRegistrar& registrar) {
  registrar.add("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_attention_backward);
}

} // namespace recals
