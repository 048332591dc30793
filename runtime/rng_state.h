#pragma once

/// The state of the generator that a random node draws from.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "recals/export.h"
#include "runtime/device_table.h"

namespace recals {

class RECALS_API RngState {
 public:
  /// The present state of the default generator of `device`. On meta nothing is drawn: a stand-in for the state of the
  /// device in `devices` is kept, so that a dry run counts its bytes.
  static RngState of(c10::Device device, const DeviceTable& devices = {});

  /// A copy of that generator, which is no tensor and takes no memory that a plan counts.
  static at::Generator copy_of_generator(c10::Device device);
  /// The state of such a copy.
  static RngState of(c10::Device device, const at::Generator& copy, const DeviceTable& devices);

  /// Bytes of host memory that the state of the default generator of `device` takes; 0 for a device that this process does
  /// not have.
  static int64_t bytes(c10::Device device);

  /// What `of` gives now, for the same device.
  RngState now() const;

  void restore() const;

  c10::Device device() const {
    return device_;
  }

 private:
  RngState(c10::Device device, at::Tensor state) : device_(device), state_(std::move(state)) {}
  c10::Device device_;
  at::Tensor state_;
};

/// Puts the generator's state aside, sets `state`, and brings the outer state back at the end of the scope, also when an
/// exception leaves it.
class RECALS_API RngGuard {
 public:
  explicit RngGuard(const RngState& state) : outer_(state.now()) {
    state.restore();
  }
  ~RngGuard() {
    outer_.restore();
  }
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  RngState outer_;
};

} // namespace recals
