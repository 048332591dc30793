#pragma once

/// The exact bytes that torch's allocators hand out and take back, per device, from a moment on.
///
/// Pushed as the calling thread's profiler state, as torch's own profiler is, so every thread that works
/// for this one (autograd's too) reports to it.

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "recals/export.h"
#include "runtime/memory_listener.h"

namespace recals {

class RECALS_API MemoryTracker : public MemoryListener {
 public:
  static constexpr size_t kMostPoints = size_t{1} << 16;

  struct Point {
    double seconds; ///< since the start
    int64_t live; ///< bytes above the start
  };
  struct PerDevice {
    int64_t live = 0; ///< bytes above the start; negative if more was freed
    int64_t peak = 0; ///< the most of them so far
    /// After every allocation and free, if asked for. Of a long run only the larger of 2, 4, 8, ... neighbours, so that
    /// there are at most kMostPoints and the peak is one of them.
    std::vector<Point> curve;
  };

  /// Starts to track what the calling thread does; stop() must be called on the same thread.
  static std::shared_ptr<MemoryTracker> start(bool with_curve);
  void stop();

  /// Bytes above the start now, by device name; copies no curve.
  std::map<std::string, int64_t> live() const;
  /// Since the start.
  double seconds() const;
  /// By device name, "cpu", "cuda:0".
  std::map<std::string, PerDevice> devices() const;
  /// Peaks count from here.
  void reset_peak();

  void reportMemoryUsage(void* ptr, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override;

 private:
  explicit MemoryTracker(bool with_curve) : with_curve_(with_curve), start_(std::chrono::steady_clock::now()) {}

  struct Recorded {
    PerDevice figures;
    size_t stride = 1; ///< events that a point stands for
    size_t events = 0; ///< that the last point stands for
  };

  void record(Recorded& device);

  const bool with_curve_;
  const std::chrono::steady_clock::time_point start_;
  mutable std::mutex mutex_;
  std::map<c10::Device, Recorded, bool (*)(c10::Device, c10::Device)> devices_{
      [](c10::Device a, c10::Device b) { return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index()); }};
};

} // namespace recals
