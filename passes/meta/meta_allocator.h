#pragma once

/// The allocator of the meta devices that counts. It is in its place from the moment that the library is loaded; without
/// a scope it does what the one before did, except that tensors made in a MetaKernels scope are on meta:i.

#include <cstdint>
#include <functional>

#include <c10/core/Storage.h>

namespace recals {

/// One allocation. Its id is never used again.
struct MetaBlock {
  int64_t id = 0;
  int64_t bytes = 0;
  int device = 0; ///< i of meta:i
};

class MetaAllocationListener {
 public:
  virtual ~MetaAllocationListener() = default;
  virtual void allocated(const MetaBlock& block) = 0;
  virtual void freed(const MetaBlock& block) = 0;
};

/// While it lives, what this thread allocates on meta is on `device`, "meta" or "meta:i".
class MetaAllocationDevice {
 public:
  explicit MetaAllocationDevice(c10::Device device);
  ~MetaAllocationDevice();
  MetaAllocationDevice(const MetaAllocationDevice&) = delete;
  MetaAllocationDevice& operator=(const MetaAllocationDevice&) = delete;

 private:
  c10::Device outer_;
};

/// While it lives, meta allocations of this thread are reported to `listener`; blocks made meanwhile report their free
/// as long as it is listening.
class MetaAllocationScope {
 public:
  explicit MetaAllocationScope(MetaAllocationListener& listener);
  ~MetaAllocationScope();
  MetaAllocationScope(const MetaAllocationScope&) = delete;
  MetaAllocationScope& operator=(const MetaAllocationScope&) = delete;

 private:
  MetaAllocationListener* outer_;
};

/// While it lives, nothing is reported.
class MetaAllocationPause {
 public:
  MetaAllocationPause();
  ~MetaAllocationPause();
  MetaAllocationPause(const MetaAllocationPause&) = delete;
  MetaAllocationPause& operator=(const MetaAllocationPause&) = delete;

 private:
  MetaAllocationListener* outer_;
};

/// The block of a storage that was allocated under a scope; null for others.
const MetaBlock* block_of(const c10::Storage& storage);

} // namespace recals
