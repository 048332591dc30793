#pragma once

/// Inputs of a step as text. A plan is made for one such text, and a call is checked against it.

#include <string>

#include <ATen/core/ivalue.h>

#include "recals/export.h"

namespace recals {

/// "f32", "i64", "b8", ...
RECALS_API std::string dtype_name(c10::ScalarType dtype);

/// "(f32[8, 3, 224, 224]@cpu, None, 3)". Tensors show dtype, sizes, strides unless contiguous, device, and "+grad" if
/// they require grad; texts are quoted; lists, tuples and dicts (sorted as they are stored) nest.
RECALS_API std::string describe(const c10::IValue& value);

/// "tensors=62, 46827520 bytes, 46827520 require grad": all parameters and buffers of a module, each storage once. A plan
/// holds for these numbers.
RECALS_API std::string describe_tensors(const c10::IValue& module);

} // namespace recals
