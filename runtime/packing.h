#pragma once

/// Smaller forms in which a saved storage waits for its backward.
///
/// A packer takes a storage as a row of elements, and promises something about them that follows from the op that saves
/// them: a dropout's noise has two values, what the backward of relu reads of its result is where it is positive. What is
/// promised of values is checked while they are packed; what is promised of a kernel is proved by running it
/// (test/unit/pack_rules_test.cpp).

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recals/export.h"

namespace recals {

struct RECALS_API Packer {
  std::string name; ///< as the graph shows it
  std::string broken; ///< what is wrong where a promise does not hold, for the message
  /// True: unpacking gives the elements back. False: it gives others that the backward's kernel cannot tell from them.
  bool lossless = true;

  bool (*takes)(c10::ScalarType dtype) = nullptr;
  int64_t (*packed_bytes)(int64_t elements, c10::ScalarType dtype) = nullptr;

  /// `elements`: one-dimensional, contiguous, of a dtype that it `takes`. Returns bytes, or an undefined tensor if the
  /// promise is broken. Meta tensors are packed to meta tensors of the same size.
  at::Tensor pack(const at::Tensor& elements) const;
  at::Tensor unpack(const at::Tensor& packed, int64_t elements, c10::ScalarType dtype) const;

  // The work, on ranges of CPU memory that torch's threads share out between them.
  using PackRange = bool (*)(const at::Tensor& elements, char* packed, int64_t begin, int64_t end);
  using UnpackRange = void (*)(const char* packed, const at::Tensor& elements, int64_t begin, int64_t end);
  PackRange pack_range = nullptr;
  UnpackRange unpack_range = nullptr;
  /// Before the ranges: what is written once, ahead of them.
  void (*pack_head)(const at::Tensor& elements, char* packed) = nullptr;
};

RECALS_API const std::vector<Packer>& packers();

/// By name; throws c10::Error naming the known ones.
RECALS_API const Packer& packer(const std::string& name);

/// The storage of `tensor` as a row of elements of its dtype.
RECALS_API at::Tensor elements_of(const at::Tensor& tensor);

} // namespace recals
