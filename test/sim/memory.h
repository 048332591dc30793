#pragma once

/// The memory of each device. It lies on the host, and is counted as the device's, to the byte: nothing is rounded.

#include <limits>

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "runtime/cpu_memory.h"
#include "test/sim/ordering.h"

namespace recals::sim {

inline constexpr int64_t kNoCapacity = std::numeric_limits<int64_t>::max();

struct MemoryCounts {
  int64_t live = 0; ///< bytes
  int64_t peak = 0; ///< the most of them since the last reset
  int64_t capacity = kNoCapacity; ///< bytes; never more are live
  int64_t out_of_memory = 0; ///< how often more were asked for
};

MemoryCounts memory_counts(c10::DeviceIndex index);
void reset_peak(c10::DeviceIndex index);
void set_capacity(c10::DeviceIndex index, int64_t bytes);

/// For tensors of the current device. Throws c10::OutOfMemoryError above the capacity.
c10::Allocator* allocator();

/// The same memory as a storage of `device`, which counts it from now on. `host` goes when the storage does.
/// Throws c10::OutOfMemoryError above the capacity.
c10::Storage adopt(c10::Storage host, c10::Device device);

/// What the memory was used for; null: there is none.
Uses* uses_of(const c10::DataPtr& pointer);

/// Notes that work on `stream` uses the memory of `pointer`.
void record_stream(const c10::DataPtr& pointer, c10::Stream stream);
/// How many blocks of the device were ever noted as used by `stream`.
int64_t blocks_recorded_on(c10::DeviceIndex index, c10::StreamId stream);

/// While it lives, what the host allocates and frees is no tensor's: nobody hears of it.
class Unheard {
 public:
  Unheard();

 private:
  c10::DebugInfoGuard profiler_;
  CpuMemoryUnheard listeners_;
};

} // namespace recals::sim
