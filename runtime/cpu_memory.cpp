#include "runtime/cpu_memory.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>

#include "runtime/debug_info.h"

namespace recals {

namespace {

/// A slot of our own. Where the kinds are a closed list, the one that torch keeps for its own C++ tests.
template <typename Kind>
Kind own_slot() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::TEST_INFO_2;
  } else {
    static constexpr std::string_view name = "RECALS_CPU_MEMORY";
    return Kind(&name);
  }
}

const auto kSlot = own_slot<c10::DebugInfoKind>();

/// A listener and what it was told of and not yet told the free of.
struct Listening {
  CpuMemoryListener& listener;
  std::unordered_map<void*, int64_t> blocks;
};

/// Those who listen to a thread and to what works for it. Once a thread has one, it keeps it.
struct Audience : public c10::DebugInfoBase, public std::enable_shared_from_this<Audience> {
  std::vector<Listening*> listening;
};

/// Every listener of the process, and the lock for all that is heard.
struct Everybody {
  std::mutex mutex;
  std::vector<Listening*> listening;
  std::atomic<size_t> count{0};
};

Everybody& everybody() {
  static auto* one = new Everybody; // outlives every tensor
  return *one;
}

void tell_allocated(void* pointer, size_t bytes) {
  auto* audience = static_cast<Audience*>(c10::ThreadLocalDebugInfo::get(kSlot));
  if (audience == nullptr) {
    return;
  }
  std::lock_guard<std::mutex> lock(everybody().mutex);
  for (auto* each : audience->listening) {
    each->blocks[pointer] = static_cast<int64_t>(bytes);
    each->listener.allocated(pointer, static_cast<int64_t>(bytes));
  }
}

void tell_freed(void* pointer) {
  std::lock_guard<std::mutex> lock(everybody().mutex);
  for (auto* each : everybody().listening) {
    if (auto block = each->blocks.extract(pointer)) {
      each->listener.freed(pointer, block.mapped());
    }
  }
}

bool somebody_listens() {
  return everybody().count.load(std::memory_order_acquire) != 0;
}

c10::DeleterFnPtr inner_deleter = nullptr;

/// In front of torch's own: the same blocks, whose context is their address as torch expects of the CPU's.
class HeardAllocator : public c10::Allocator {
 public:
  /// Takes the place of torch's allocator.
  HeardAllocator() : inner_(c10::GetAllocator(c10::kCPU)) {
    inner_deleter = inner_->raw_deleter();
    if (inner_deleter != nullptr) {
      // The lowest priority, so that whoever replaces the allocator later gets what they ask for.
      c10::SetAllocator(c10::kCPU, this);
    }
  }

  bool is_in_place() const {
    return c10::GetAllocator(c10::kCPU) == this;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto data = inner_->allocate(bytes);
    if (data.get() != nullptr && data.compare_exchange_deleter(inner_deleter, &free_heard) && somebody_listens()) {
      tell_allocated(data.get(), bytes);
    }
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_heard;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return inner_->is_simple_data_ptr(data);
  }

 private:
  /// Told first: once the block is free, another thread may get it again.
  static void free_heard(void* pointer) {
    if (somebody_listens()) {
      tell_freed(pointer);
    }
    inner_deleter(pointer);
  }

  c10::Allocator* const inner_;
};

/// Put in place when the library is loaded: later, other threads may be allocating.
const HeardAllocator& allocator = *new HeardAllocator;

std::shared_ptr<Audience> audience_of_this_thread() {
  if (auto* known = static_cast<Audience*>(c10::ThreadLocalDebugInfo::get(kSlot))) {
    return known->shared_from_this();
  }
  auto audience = std::make_shared<Audience>();
  put_below(kSlot, audience);
  return audience;
}

} // namespace

struct CpuMemorySubscription::Impl {
  Listening listening;
  std::shared_ptr<Audience> audience;
};

CpuMemorySubscription::CpuMemorySubscription(CpuMemoryListener& listener) {
  TORCH_CHECK(
      allocator.is_in_place(),
      "recals: torch's CPU allocator was replaced after recals had been loaded (or by one that recals cannot stand in "
      "front of), so that allocations cannot be counted. Import recals after the library that replaces it.");
  impl_.reset(new Impl{{listener, {}}, audience_of_this_thread()});
  std::lock_guard<std::mutex> lock(everybody().mutex);
  impl_->audience->listening.push_back(&impl_->listening);
  everybody().listening.push_back(&impl_->listening);
  ++everybody().count;
}

CpuMemorySubscription::~CpuMemorySubscription() {
  std::lock_guard<std::mutex> lock(everybody().mutex);
  std::erase(impl_->audience->listening, &impl_->listening);
  std::erase(everybody().listening, &impl_->listening);
  --everybody().count;
}

CpuMemoryUnheard::CpuMemoryUnheard() : guard_(kSlot, std::make_shared<Audience>()) {}

} // namespace recals
