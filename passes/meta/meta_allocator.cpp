#include "passes/meta/meta_allocator.h"

#include <atomic>

#include <c10/core/Allocator.h>

namespace recals {

namespace {

thread_local MetaAllocationListener* listening = nullptr;
thread_local c10::Device allocating_on{c10::kMeta};

struct OwnedBlock {
  MetaBlock block;
  MetaAllocationListener* listener;
};

void free_block(void* context) {
  auto* owned = static_cast<OwnedBlock*>(context);
  // A tensor may outlive the scope that it was made in.
  if (listening == owned->listener) {
    listening->freed(owned->block);
  }
  delete owned;
}

class CountingMetaAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device meta = allocating_on;
    if (listening == nullptr) {
      return {nullptr, nullptr, &c10::detail::deleteNothing, meta};
    }
    static std::atomic<int64_t> next{0};
    auto* owned = new OwnedBlock{{next++, static_cast<int64_t>(bytes), meta.has_index() ? meta.index() : 0}, listening};
    listening->allocated(owned->block);
    return {nullptr, owned, &free_block, meta};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &c10::detail::deleteNothing;
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};

/// Put in place when the library is loaded: later, other threads may be allocating. Outlives every tensor.
[[gnu::used]] const auto& allocator = []() -> const c10::Allocator& {
  auto* one = new CountingMetaAllocator;
  c10::SetAllocator(c10::kMeta, one, /*priority=*/100);
  return *one;
}();

} // namespace

MetaAllocationDevice::MetaAllocationDevice(c10::Device device) : outer_(allocating_on) {
  allocating_on = device;
}

MetaAllocationDevice::~MetaAllocationDevice() {
  allocating_on = outer_;
}

MetaAllocationScope::MetaAllocationScope(MetaAllocationListener& listener) : outer_(listening) {
  listening = &listener;
}

MetaAllocationScope::~MetaAllocationScope() {
  listening = outer_;
}

MetaAllocationPause::MetaAllocationPause() : outer_(listening) {
  listening = nullptr;
}

MetaAllocationPause::~MetaAllocationPause() {
  listening = outer_;
}

const MetaBlock* block_of(const c10::Storage& storage) {
  const auto& data = storage.data_ptr();
  if (data.get_deleter() != &free_block) {
    return nullptr;
  }
  return &static_cast<OwnedBlock*>(data.get_context())->block;
}

} // namespace recals
