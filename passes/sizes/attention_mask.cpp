#include "passes/sizes/attention_mask.h"

#include <ATen/autocast_mode.h>

#include <ATen/ATen.h>

namespace recals {

std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask, const at::Tensor& query) {
  if (!mask || mask->scalar_type() != at::kBool) {
    return mask;
  }
  at::NoGradGuard no_grad;
  return at::zeros_like(*mask, query.options());
}

at::Tensor autocast_argument(const at::Tensor& tensor, c10::DeviceType device) {
  const bool casts =
      at::autocast::is_autocast_enabled(device) && tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
  return casts ? tensor.to(at::autocast::get_autocast_dtype(device)) : tensor;
}

} // namespace recals
