#pragma once

/// The ops that a rewritten graph shows. Their kernels are in ops.cpp; the schemas are the file format.

#include <ATen/core/interned_strings.h>

#include "recals/export.h"

namespace recals::ops {

/// Bump when a schema or its meaning changes; a module carries the number it was written with.
constexpr int64_t kFormatVersion = 1;
/// Files since this one are read as they were meant.
constexpr int64_t kOldestFormatVersion = 1;

/// Throws c10::Error, with the numbers and what to do, if a module of this format cannot be read.
RECALS_API void check_format(int64_t format);

/// enter(Any self, Any inputs, str expected, str[] attributes, int format) -> bool
/// True: train under the plan. False: a plain call (grad mode off, or not the mode the plan was made for). Throws if
/// the step is to be trained with inputs other than `expected`.
inline const auto enter = c10::Symbol::fromQualString("recals::enter");

/// checkpoint(Any self, str method, Tensor[] inputs) -> Tensor[]
/// Runs a method of `self` op by op. Inside it, further calls are its regions.
inline const auto checkpoint = c10::Symbol::fromQualString("recals::checkpoint");

/// keep(Tensor value, int bytes) -> Tensor: a replay that reads `value` finds it; it is not recomputed.
inline const auto keep = c10::Symbol::fromQualString("recals::keep");

/// recompute(Tensor value, int bytes) -> Tensor: the storage of `value` is freed after the forward and recomputed.
inline const auto recompute = c10::Symbol::fromQualString("recals::recompute");

/// recompute_internal(Tensor output, int[] numbers, int bytes) -> Tensor: the same for what the op that made `output`
/// saved without showing it.
inline const auto recompute_internal = c10::Symbol::fromQualString("recals::recompute_internal");

/// region(str name) -> () and end_region() -> (): what passes/boundaries puts around the nodes of a region; passes/lower
/// makes methods of them.
inline const auto region = c10::Symbol::fromQualString("recals::region");
inline const auto end_region = c10::Symbol::fromQualString("recals::end_region");

} // namespace recals::ops
