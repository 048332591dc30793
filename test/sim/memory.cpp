#include "test/sim/memory.h"

#include <array>
#include <cstring>
#include <mutex>
#include <set>

#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include "test/sim/devices.h"

namespace recals::sim {

namespace {

struct DeviceMemory {
  std::mutex mutex;
  MemoryCounts counts;
  std::map<c10::StreamId, int64_t> recorded;
};

DeviceMemory& memory_of(c10::DeviceIndex index) {
  static auto* memories = new std::array<DeviceMemory, kMostDevices>(); // outlives every tensor
  return memories->at(index);
}

/// What the data pointer of a storage on a device owns.
struct Block {
  c10::DeviceIndex device;
  int64_t bytes;
  c10::Storage host; ///< whose memory it is; none: the block's own
  void* own = nullptr;
  Uses uses;
  std::set<StreamKey> streams; ///< recorded
};

void report(Block& block, int64_t bytes, const MemoryCounts& counts) {
  c10::reportMemoryUsageToProfiler(
      &block, bytes, static_cast<size_t>(counts.live), static_cast<size_t>(counts.live), {kSim, block.device});
}

void take(Block& block) {
  auto& memory = memory_of(block.device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  auto& counts = memory.counts;
  if (block.bytes > counts.capacity - counts.live) {
    ++counts.out_of_memory;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        "sim: out of memory on ",
        c10::Device(kSim, block.device),
        ": asked for ",
        block.bytes,
        " bytes, ",
        counts.capacity - counts.live,
        " of ",
        counts.capacity,
        " are free");
  }
  counts.live += block.bytes;
  counts.peak = std::max(counts.peak, counts.live);
  report(block, block.bytes, counts);
}

void give_back(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  {
    auto& memory = memory_of(block->device);
    std::lock_guard<std::mutex> lock(memory.mutex);
    memory.counts.live -= block->bytes;
    report(*block, -block->bytes, memory.counts);
  }
  note_free(block->uses, {block->streams.begin(), block->streams.end()});
  c10::free_cpu(block->own);
  const Unheard unheard; // nobody heard of the host's allocation
  block->host = {};
}

/// From here on `block` counts; throws if the device is too small for it.
std::unique_ptr<void, void (*)(void*)> counted(Block block) {
  auto owned = std::make_unique<Block>(std::move(block));
  owned->uses.home = key_of(current_stream(owned->device));
  take(*owned);
  return {owned.release(), &give_back};
}

/// Null where there are no bytes.
Block* block_of(const c10::DataPtr& pointer) {
  return pointer.get_deleter() == &give_back ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

class SimAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_device();
    if (bytes == 0) {
      return {nullptr, c10::Device(kSim, index)};
    }
    // Counted first: what is above the capacity is not taken from the host either.
    auto block = counted({index, static_cast<int64_t>(bytes), {}, nullptr, {}, {}});
    void* data = c10::alloc_cpu(bytes);
    static_cast<Block*>(block.get())->own = data;
    return {data, block.release(), &give_back, c10::Device(kSim, index)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

class NobodyHears : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override {
    return false;
  }
};

} // namespace

MemoryCounts memory_counts(c10::DeviceIndex index) {
  auto& memory = memory_of(index);
  std::lock_guard<std::mutex> lock(memory.mutex);
  return memory.counts;
}

void reset_peak(c10::DeviceIndex index) {
  auto& memory = memory_of(index);
  std::lock_guard<std::mutex> lock(memory.mutex);
  memory.counts.peak = memory.counts.live;
}

void set_capacity(c10::DeviceIndex index, int64_t bytes) {
  auto& memory = memory_of(index);
  std::lock_guard<std::mutex> lock(memory.mutex);
  memory.counts.capacity = bytes;
}

c10::Allocator* allocator() {
  static SimAllocator one;
  return &one;
}

c10::Storage adopt(c10::Storage host, c10::Device device) {
  const auto bytes = static_cast<int64_t>(host.nbytes());
  c10::DataPtr pointer(nullptr, device);
  if (bytes != 0) {
    void* data = host.mutable_data();
    auto block = counted({device.index(), bytes, std::move(host), nullptr, {}, {}});
    pointer = {data, block.release(), &give_back, device};
  }
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(pointer), allocator(), /*resizable=*/true);
}

Uses* uses_of(const c10::DataPtr& pointer) {
  auto* block = block_of(pointer);
  return block == nullptr ? nullptr : &block->uses;
}

void record_stream(const c10::DataPtr& pointer, c10::Stream stream) {
  auto* block = block_of(pointer);
  if (block == nullptr) {
    return;
  }
  auto& memory = memory_of(block->device);
  std::lock_guard<std::mutex> lock(memory.mutex);
  if (block->streams.insert(key_of(stream)).second) {
    ++memory.recorded[stream.id()];
  }
}

int64_t blocks_recorded_on(c10::DeviceIndex index, c10::StreamId stream) {
  auto& memory = memory_of(index);
  std::lock_guard<std::mutex> lock(memory.mutex);
  auto found = memory.recorded.find(stream);
  return found == memory.recorded.end() ? 0 : found->second;
}

Unheard::Unheard()
    : profiler_(c10::DebugInfoKind::PROFILER_STATE, [] {
        static const auto nobody = std::make_shared<NobodyHears>();
        return nobody;
      }()) {}

REGISTER_ALLOCATOR(kSim, allocator())

} // namespace recals::sim
