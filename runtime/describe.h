#pragma once

/// Inputs of a step as text. A plan is made for one such text, and a call is checked against it.

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>

#include "recals/export.h"
#include "runtime/autocast_state.h"
#include "runtime/backend_state.h"

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

/// What a training step is planned for and checked against: the inputs, the autocast state of this thread if it casts on a
/// device of theirs or of the tensors of `module`, and the switches of backends that are not as torch has them at first:
/// "(f32[8, 16]@cpu) under autocast(cpu: bf16) with oneDNN off".
RECALS_API std::string describe_step(
    const c10::IValue& module,
    const c10::IValue& inputs,
    std::optional<c10::Device> as = std::nullopt,
    DictOrder order = DictOrder::Sorted);

/// Such a text, taken apart.
struct StepText {
  std::string inputs;
  std::optional<AutocastState> autocast; ///< nothing if nothing is cast
  std::optional<BackendState> backend; ///< nothing if no switch is named
};

/// Throws c10::Error for what `describe_step` did not write.
RECALS_API StepText parse_step(const std::string& text);

/// "tensors=62, 46827520 bytes, 46827520 require grad": all parameters and buffers of a module, each storage once. A plan
/// holds for these numbers.
RECALS_API std::string describe_tensors(const c10::IValue& module);

} // namespace recals
