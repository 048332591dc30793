#pragma once

/// Whether bytes are still the same, without a copy of them.

#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "recals/export.h"

namespace recals {

struct Checksum {
  uint64_t one = 0;
  uint64_t other = 0;

  bool operator==(const Checksum& that) const = default;
};

/// 128 bits that depend on each of the `size` bytes and on its place. Two texts that differ in one 8-byte word never have the
/// same; others have by chance, not by somebody's will: it is no signature.
RECALS_API Checksum checksum_of(const void* bytes, size_t size);

/// Of the storage that `tensor` shows, if it is on the CPU and takes at most 64 KiB: a few microseconds. Nothing for others.
RECALS_API std::optional<Checksum> checksum_if_small(const at::Tensor& tensor);

} // namespace recals
