#include "passes/sizes/attention_mask.h"

#include <ATen/ATen.h>

namespace recals {

std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask, const at::Tensor& query) {
  if (!mask || mask->scalar_type() != at::kBool) {
    return mask;
  }
  at::NoGradGuard no_grad;
  return at::zeros_like(*mask, query.options());
}

} // namespace recals
