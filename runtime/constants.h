#pragma once

#include <ATen/core/Tensor.h>

#include "recals/export.h"

namespace recals {

/// A constant of the step on `stand_in`, a meta device. What Python wrote as a number stays one: it takes part in type
/// promotion as a number does, not as a tensor.
RECALS_API at::Tensor constant_on_meta(const at::Tensor& constant, c10::Device stand_in);

} // namespace recals
