#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace recals {

/// scaled_dot_product_attention converts a boolean mask to one that is added, of the query's dtype.
std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask, const at::Tensor& query);

} // namespace recals
