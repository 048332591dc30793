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
  entry.figures.live += bytes;
  entry.figures.peak = std::max(entry.figures.peak, entry.figures.live);
  if (with_curve_) {
    record(entry);
  }
}

void MemoryTracker::record(Recorded& device) {
  auto& curve = device.figures.curve;
  const Point now{seconds(), device.figures.live};
  if (device.events != 0 && device.events < device.stride) {
    ++device.events;
    if (now.live >= curve.back().live) {
      curve.back() = now;
    }
    return;
  }
  if (curve.size() == kMostPoints) {
    for (size_t p = 0; p < curve.size(); p += 2) {
      curve[p / 2] = curve[p].live > curve[p + 1].live ? curve[p] : curve[p + 1];
    }
    curve.resize(curve.size() / 2);
    device.stride *= 2;
  }
  curve.push_back(now);
  device.events = 1;
}

double MemoryTracker::seconds() const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  return elapsed.count();
}

std::map<std::string, int64_t> MemoryTracker::live() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, int64_t> named;
  for (const auto& [device, entry] : devices_) {
    named[device.str()] = entry.figures.live;
  }
  return named;
}

std::map<std::string, MemoryTracker::PerDevice> MemoryTracker::devices() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, PerDevice> named;
  for (const auto& [device, entry] : devices_) {
    named[device.str()] = entry.figures;
  }
  return named;
}

void MemoryTracker::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [device, entry] : devices_) {
    entry.figures.peak = entry.figures.live;
  }
}

} // namespace recals
