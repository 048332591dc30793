#include <ATen/OpMathType.h>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

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
  return {head_inside(query, query.size(3)), head_inside(key, key.size(3)), head_inside(value, value.size(3))};
}

} // namespace

void add_attention_kernels(MetaRegistrar& registrar) {
  registrar.add("_scaled_dot_product_flash_attention_for_cpu", &flash_attention);
  registrar.add("_scaled_dot_product_flash_attention_for_cpu_backward", &flash_attention_backward);
}

} // namespace recals
