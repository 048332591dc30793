#include "passes/sizes/attention_mask.h"

#include <limits>

#include <ATen/ATen.h>
#include <torch/version.h>

namespace recals {

std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask, const at::Tensor& query) {
  if (!mask || mask->scalar_type() != at::kBool) {
    return mask;
  }
  at::NoGradGuard no_grad;
  const auto options = mask->options().dtype(query.dtype());
  constexpr double excluded = -std::numeric_limits<double>::infinity();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  return at::where(*mask, at::scalar_tensor(0.0, options), at::scalar_tensor(excluded, options));
#else
  return at::zeros_like(*mask, options).masked_fill_(mask->logical_not(), excluded);
#endif
}

} // namespace recals
