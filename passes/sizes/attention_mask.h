#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace recals {

/// scaled_dot_product_attention converts a boolean mask to one that is added, of the query's dtype.
std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask, const at::Tensor& query);

/// As autocast of `device` casts an argument of scaled_dot_product_attention.
at::Tensor autocast_argument(const at::Tensor& tensor, c10::DeviceType device);

} // namespace recals
