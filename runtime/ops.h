#pragma once

/// The ops that a rewritten graph shows. Their kernels are in ops.cpp; the schemas are the file format.

#include <string>
#include <vector>

#include <ATen/core/interned_strings.h>

#include "recals/export.h"

namespace recals::ops {

/// Bump when a schema or its meaning changes; a module carries the number it was written with.
constexpr int64_t kFormatVersion = 4;
/// Older files are read as they were meant: format 1 has no packs, no kept internals, and retains whatever it replays;
/// format 2 does not say which autocast state its plan is for, and trains under any; format 3 calls its plain method
/// without recals::plain.
constexpr int64_t kOldestFormatVersion = 1;
constexpr int64_t kFirstFormatWithAutocast = 3;

/// Throws c10::Error, with the numbers and what to do, if a module of this format cannot be read.
RECALS_API void check_format(int64_t format);

/// enter(Any self, Any inputs, str expected, str[] attributes, int format) -> bool
/// True: train under the plan. False: a plain call (grad mode off, or not the mode the plan was made for). Throws if
/// the step is to be trained with inputs, or under an autocast state, other than `expected` (describe_step).
inline const auto enter = c10::Symbol::fromQualString("recals::enter");

/// plain(Any self, str method, Any arguments) -> Any
/// Calls a method of `self` with the elements of a tuple. A call that TorchScript sees is inlined, and what the method
/// makes of constants alone (masks, positions) is then computed when the step is first run and held for ever.
inline const auto plain = c10::Symbol::fromQualString("recals::plain");
/// One of the `attributes`: the method goes through dicts, so that the inputs' entries must be in the order of `expected`,
/// which else has them sorted.
constexpr const char* kDictsInOrder = "dict inputs=in order";

/// checkpoint(Any self, str method, Tensor[] inputs) -> Tensor[]
/// Runs a method of `self` op by op. Inside it, further calls are its regions.
inline const auto checkpoint = c10::Symbol::fromQualString("recals::checkpoint");

/// The attribute of a rewritten module that holds its plan. Freezing takes it away, with all that is trained.
inline constexpr const char* kPlanAttribute = "recals_plan";

// Marks. `retained_from`: a replay retains the storage if it is asked for by the backward of this node of the step or of
// one before it (Choice::cache_from of passes/plan); the default is always, -1 is never.

/// keep(Tensor value, int bytes) -> Tensor: a replay that reads `value` finds it; it is not recomputed.
inline const auto keep = c10::Symbol::fromQualString("recals::keep");

/// keep_internal(Tensor output, int[] numbers, int bytes) -> Tensor: so it is with what the op that made `output` saved
/// without showing it; the op is run again from that where this is cheaper.
inline const auto keep_internal = c10::Symbol::fromQualString("recals::keep_internal");

/// recompute(Tensor value, int bytes, int retained_from) -> Tensor: the storage of `value` is freed after the forward
/// and recomputed.
inline const auto recompute = c10::Symbol::fromQualString("recals::recompute");

/// recompute_internal(Tensor output, int[] numbers, int bytes, int retained_from) -> Tensor
inline const auto recompute_internal = c10::Symbol::fromQualString("recals::recompute_internal");

/// pack(Tensor value, str packer, int bytes, int packed_bytes, int retained_from) -> Tensor: the storage of `value` is
/// freed after the forward, and waits for the backward in the form of a packer of runtime/packing.h.
inline const auto pack = c10::Symbol::fromQualString("recals::pack");

/// pack_internal(Tensor output, int[] numbers, str packer, int bytes, int packed_bytes, int retained_from) -> Tensor
inline const auto pack_internal = c10::Symbol::fromQualString("recals::pack_internal");

/// region(str name) -> () and end_region() -> (): what passes/boundaries puts around the nodes of a region; passes/lower
/// makes methods of them.
inline const auto region = c10::Symbol::fromQualString("recals::region");
inline const auto end_region = c10::Symbol::fromQualString("recals::end_region");

/// Names of the ops "recals::elu" and so on: the in-place op of ATen, "aten::elu_", on a copy of its first argument. Same
/// result and same gradient as in place, to the bit, and what it has written can be made again.
RECALS_API const std::vector<std::string>& on_copy();

/// A mark returns the value that it marks.
inline bool is_mark(c10::Symbol op) {
  return op == keep || op == keep_internal || op == recompute || op == recompute_internal || op == pack ||
      op == pack_internal;
}

/// It says something about what the op saved, not about the value itself.
inline bool marks_internal(c10::Symbol op) {
  return op == keep_internal || op == recompute_internal || op == pack_internal;
}

} // namespace recals::ops
