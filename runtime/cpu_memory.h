#pragma once

/// Who hears of the bytes that torch's CPU allocator hands out and takes back.
///
/// Note [The CPU's allocator]
/// Torch tells of allocations only what stands in the one slot of its profiler, and casts what stands there to that
/// profiler. So Recals does not listen there: when its library is loaded, it puts an allocator in front of torch's that
/// hands out the very same blocks, and tells listeners of a slot of their own. Torch's profiler hears of all blocks as
/// before, and any number of listeners hears beside it. While nobody listens, this costs the read of a number.
///
/// A block is known to those who were listening to the thread that allocated it, and they hear of its free, whichever
/// thread frees it. Blocks from before have another deleter, or none who knows them.

#include <cstdint>
#include <memory>

#include <c10/util/ThreadLocalDebugInfo.h>

#include "recals/export.h"

namespace recals {

/// Called by the thread that allocates or frees, one call at a time in all of the process. Must neither allocate nor free
/// tensors.
class RECALS_API CpuMemoryListener {
 public:
  virtual ~CpuMemoryListener() = default;
  virtual void allocated(void* pointer, int64_t bytes) = 0;
  /// Of a block that it was told of before.
  virtual void freed(void* pointer, int64_t bytes) = 0;
};

/// While it lives, `listener` hears of what this thread allocates, and of what others allocate that work for it (autograd's
/// threads). May be destroyed on any thread, and before or after what was made later.
class RECALS_API CpuMemorySubscription {
 public:
  /// Throws c10::Error if somebody has replaced the allocator.
  explicit CpuMemorySubscription(CpuMemoryListener& listener);
  ~CpuMemorySubscription();
  CpuMemorySubscription(const CpuMemorySubscription&) = delete;
  CpuMemorySubscription& operator=(const CpuMemorySubscription&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// While it lives, nobody hears of what this thread allocates, nor ever of the free of that.
class RECALS_API CpuMemoryUnheard {
 public:
  CpuMemoryUnheard();

 private:
  c10::DebugInfoGuard guard_;
};

} // namespace recals
