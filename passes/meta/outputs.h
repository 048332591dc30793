#pragma once

/// How kernels make their outputs.

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

namespace recals {

using OptionalTensor = std::optional<at::Tensor>;

/// A tensor of these sizes, dtype and device those of `like`.
inline at::Tensor make(
    const at::Tensor& like,
    at::IntArrayRef sizes,
    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  return at::empty(sizes, like.options().memory_format(format));
}

inline at::Tensor make(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::empty(sizes, like.options().dtype(dtype));
}

/// Sizes and dtype of `like`.
inline at::Tensor make_contiguous(const at::Tensor& like) {
  return make(like, like.sizes());
}

/// Sizes and dtype of `like`, channels last if it is.
inline at::Tensor make_suggested(const at::Tensor& like) {
  return make(like, like.sizes(), like.suggest_memory_format());
}

/// [batch, head, position, channel] of `like` with `channels`, in memory as [batch, position, head, channel].
inline at::Tensor head_inside(const at::Tensor& like, int64_t channels) {
  const auto s = like.sizes();
  return at::empty_strided(
      {s[0], s[1], s[2], channels}, {s[2] * s[1] * channels, channels, s[1] * channels, 1}, like.options());
}

/// `out` of an op's out= variant.
inline at::Tensor& resized(
    at::Tensor& out,
    at::IntArrayRef sizes,
    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  out.resize_(sizes, format);
  return out;
}

inline bool defined(const OptionalTensor& tensor) {
  return tensor && tensor->defined();
}

inline int64_t product(at::IntArrayRef sizes) {
  return c10::multiply_integers(sizes);
}

} // namespace recals
