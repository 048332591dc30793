#include "runtime/memory_tracker.h"

#include <algorithm>

#include <ATen/DeviceAccelerator.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include "runtime/debug_info.h"
#include "runtime/devices_here.h"

namespace recals {

/// Stands in the slot that allocators of accelerators report to. Others take what stands there for one of torch's
/// profilers (Python's autograd.Function asks it for its settings), so it is such a profiler, one that is switched off.
class AcceleratorReports : public torch::profiler::impl::ProfilerStateBase,
                           public std::enable_shared_from_this<AcceleratorReports> {
 public:
  /// Puts one into the slot of this thread; null if somebody else's profiler stands there.
  static std::shared_ptr<AcceleratorReports> start(MemoryTracker& tracker) {
    auto* known = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
    auto* outer = dynamic_cast<AcceleratorReports*>(known);
    if (known != nullptr && outer == nullptr) {
      return nullptr;
    }
    std::shared_ptr<AcceleratorReports> reports(
        new AcceleratorReports(tracker, outer == nullptr ? nullptr : outer->shared_from_this()));
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, reports);
    return reports;
  }

  void stop() {
    take_out(c10::DebugInfoKind::PROFILER_STATE, this);
    // Threads that work for this one may report a little longer.
    std::lock_guard<std::mutex> lock(mutex_);
    tracker_ = nullptr;
  }

  bool memoryProfilingEnabled() const override {
    return true;
  }
  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }

  void reportMemoryUsage(void* pointer, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (tracker_ != nullptr && !device.is_cpu()) {
        tracker_->changed(device, bytes);
      }
    }
    if (outer_ != nullptr) {
      outer_->reportMemoryUsage(pointer, bytes, allocated, reserved, device);
    }
  }

 private:
  AcceleratorReports(MemoryTracker& tracker, std::shared_ptr<AcceleratorReports> outer)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        tracker_(&tracker),
        outer_(std::move(outer)) {}

  std::mutex mutex_;
  MemoryTracker* tracker_;
  const std::shared_ptr<AcceleratorReports> outer_; ///< which goes on hearing
};

namespace {

bool has_accelerator() {
  const auto type = at::getAccelerator();
  return type && devices_here(*type) > 0;
}

} // namespace

MemoryTracker::MemoryTracker(bool with_curve)
    : with_curve_(with_curve), start_(std::chrono::steady_clock::now()), has_accelerator_(has_accelerator()) {}

std::shared_ptr<MemoryTracker> MemoryTracker::start(bool with_curve) {
  std::shared_ptr<MemoryTracker> tracker(new MemoryTracker(with_curve));
  tracker->cpu_ = std::make_unique<CpuMemorySubscription>(static_cast<CpuMemoryListener&>(*tracker));
  if (tracker->has_accelerator_) {
    tracker->accelerators_ = AcceleratorReports::start(*tracker);
  }
  return tracker;
}

void MemoryTracker::stop() {
  cpu_.reset();
  if (auto reports = std::exchange(accelerators_, nullptr)) {
    reports->stop();
  }
}

MemoryTracker::~MemoryTracker() {
  stop();
}

bool MemoryTracker::hears_accelerators() const {
  return !has_accelerator_ || accelerators_ != nullptr;
}

void MemoryTracker::allocated(void*, int64_t bytes) {
  changed(c10::kCPU, bytes);
}

void MemoryTracker::freed(void*, int64_t bytes) {
  changed(c10::kCPU, -bytes);
}

void MemoryTracker::changed(c10::Device device, int64_t bytes) {
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
