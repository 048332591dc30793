#include "runtime/memory_tracker.h"

#include <algorithm>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace recals {

std::shared_ptr<MemoryTracker> MemoryTracker::start(bool with_curve) {
  std::shared_ptr<MemoryTracker> tracker(new MemoryTracker(with_curve));
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, tracker);
  return tracker;
}

void MemoryTracker::stop() {
  c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
}

void MemoryTracker::reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& entry = devices_[device];
  entry.live += bytes;
  entry.peak = std::max(entry.peak, entry.live);
  if (with_curve_) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    entry.curve.push_back({elapsed.count(), entry.live});
  }
}

std::map<std::string, MemoryTracker::PerDevice> MemoryTracker::devices() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, PerDevice> named;
  for (const auto& [device, entry] : devices_) {
    named[device.str()] = entry;
  }
  return named;
}

void MemoryTracker::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [device, entry] : devices_) {
    entry.peak = entry.live;
  }
}

} // namespace recals
