#pragma once

/// Checks that cost time, for who looks for a mistake of their own (recals.debug).

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "recals/export.h"

namespace recals {

/// Of the process. What a forward holds while it is on is checked in its backward.
RECALS_API bool debugging();
RECALS_API void set_debugging(bool on);

/// A number that is another one when an element of `tensor` is; never 0. Reads all of it, and copies what is not
/// contiguous or not on the CPU.
uint64_t fingerprint(const at::Tensor& tensor);

} // namespace recals
