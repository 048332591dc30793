#pragma once

/// The state of the generator that a random node draws from.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "recals/export.h"

namespace recals {

class RECALS_API RngState {
 public:
  /// The present state of the default generator of `device`. On meta tensors nothing is drawn: a stand-in of the same
  /// size is kept, so that a dry run counts its bytes.
  static RngState of(c10::Device device);

  /// A copy of that generator, which is no tensor and takes no memory that a plan counts.
  static at::Generator copy_of_generator(c10::Device device);
  /// The state of such a copy.
  static RngState of(c10::Device device, const at::Generator& copy);

  /// Bytes that the state of `device`'s generator takes.
  static int64_t bytes(c10::Device device);

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
  explicit RngGuard(const RngState& state) : outer_(RngState::of(state.device())) {
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
