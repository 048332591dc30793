#pragma once

/// Torch's per-thread stack of debug infos, entered and left in any order.
///
/// Note [Out of order]
/// What works for a thread (autograd's threads, forks) inherits its debug infos, which is why listeners of allocations
/// stand there. But torch takes an entry off only if it is the last one, while users enter and leave profilers and
/// trackers in any order. So an entry of Recals stands below those of torch, and is taken out from wherever it is.

#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace recals {

/// Puts `info` into this thread's stack, below the entries of torch's own kinds.
void put_below(c10::DebugInfoKind kind, const std::shared_ptr<c10::DebugInfoBase>& info);

/// Takes `info`, of `kind`, out of it; if it is not there, or below an entry of a kind that torch does not have, nothing
/// happens.
void take_out(c10::DebugInfoKind kind, const c10::DebugInfoBase* info);

} // namespace recals
