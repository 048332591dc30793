#pragma once

/// The exact bytes that torch's allocators hand out and take back, per device, from a moment on.
///
/// Of the CPU it hears beside whoever else listens, torch's profiler and other trackers (Note [The CPU's allocator]).
/// Allocators of accelerators tell only what stands in the slot of torch's profiler. There a tracker stands where torch
/// has an accelerator and the slot is free; while a profiler is active in the thread, it hears of the CPU alone.

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "recals/export.h"
#include "runtime/cpu_memory.h"

namespace recals {

class AcceleratorReports;

class RECALS_API MemoryTracker : private CpuMemoryListener {
 public:
  static constexpr size_t kMostPoints = size_t{1} << 16;

  struct Point {
    double seconds; ///< since the start
    int64_t live; ///< bytes above the start
  };
  struct PerDevice {
    int64_t live = 0; ///< bytes above the start; negative if more was freed (of an accelerator's)
    int64_t peak = 0; ///< the most of them so far
    /// After every allocation and free, if asked for. Of a long run only the larger of 2, 4, 8, ... neighbours, so that
    /// there are at most kMostPoints and the peak is one of them.
    std::vector<Point> curve;
  };

  /// Starts to track what the calling thread does, and what works for it (autograd's threads). Trackers and profilers may
  /// be nested, and end in any order.
  static std::shared_ptr<MemoryTracker> start(bool with_curve);
  /// The figures stay. Also done by the destructor.
  void stop();
  ~MemoryTracker() override;
  MemoryTracker(const MemoryTracker&) = delete;
  MemoryTracker& operator=(const MemoryTracker&) = delete;

  /// Is every device of this process heard? False if there is an accelerator, and one of torch's profilers is active.
  bool hears_accelerators() const;

  /// Bytes above the start now, by device name; copies no curve.
  std::map<std::string, int64_t> live() const;
  /// Since the start.
  double seconds() const;
  /// By device name, "cpu", "cuda:0".
  std::map<std::string, PerDevice> devices() const;
  /// Peaks count from here.
  void reset_peak();

  /// `bytes` were allocated on `device`, or freed if negative. Called by those who hear of it.
  void changed(c10::Device device, int64_t bytes);

 private:
  explicit MemoryTracker(bool with_curve);

  struct Recorded {
    PerDevice figures;
    size_t stride = 1; ///< events that a point stands for
    size_t events = 0; ///< that the last point stands for
  };

  void allocated(void* pointer, int64_t bytes) override;
  void freed(void* pointer, int64_t bytes) override;
  void record(Recorded& device);

  const bool with_curve_;
  const std::chrono::steady_clock::time_point start_;
  mutable std::mutex mutex_;
  std::map<c10::Device, Recorded, bool (*)(c10::Device, c10::Device)> devices_{
      [](c10::Device a, c10::Device b) { return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index()); }};
  std::shared_ptr<AcceleratorReports> accelerators_; ///< null: not heard
  bool has_accelerator_ = false;
  std::unique_ptr<CpuMemorySubscription> cpu_;
};

} // namespace recals
