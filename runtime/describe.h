#pragma once

/// Inputs of a step as text. A plan is made for one such text, and a call is checked against it.

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>

#include "recals/export.h"

namespace recals {

/// "f32", "i64", "b8", ...
RECALS_API std::string dtype_name(c10::ScalarType dtype);

/// "(f32[8, 3, 224, 224]@cpu, None, 3)". Tensors show dtype, sizes, strides unless contiguous, device, and "+grad" if
/// they require grad; texts are quoted; lists, tuples and dicts nest.
/// `as`: the device to show for every tensor instead of its own. `order`: of the entries of dicts.
enum class DictOrder { Stored, Sorted };
RECALS_API std::string describe(
    const c10::IValue& value,
    std::optional<c10::Device> as = std::nullopt,
    DictOrder order = DictOrder::Stored);

/// What a training step is planned for and checked against: the inputs, and the autocast state of this thread if it casts
/// on a device of theirs or of the tensors of `module`: "(f32[8, 16]@cpu) under autocast(cpu: bf16)".
RECALS_API std::string describe_step(
    const c10::IValue& module,
    const c10::IValue& inputs,
    std::optional<c10::Device> as = std::nullopt,
    DictOrder order = DictOrder::Sorted);

/// "tensors=62, 46827520 bytes, 46827520 require grad": all parameters and buffers of a module, each storage once. A plan
/// holds for these numbers.
RECALS_API std::string describe_tensors(const c10::IValue& module);

} // namespace recals
