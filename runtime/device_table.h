#pragma once

/// The devices of a step, numbered. In a dry run the tensors of the first are on "meta", those of the i-th other on meta:i.
/// LibTorch has code that knows the one and not the other, so that a step on one device takes no risk.

#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include "recals/export.h"

namespace recals {

class RECALS_API DeviceTable {
 public:
  /// Of "cuda" without an index, the thread's current one; index 0 where this process has no such devices.
  static c10::Device with_index(c10::Device device);

  /// The number of `device`, which is added if it is new. CPU: without index; others: with one.
  int add(c10::Device device);
  /// -1: not there.
  int number_of(c10::Device device) const;

  /// The meta device that stands for `device`, which is added if it is new. Meta devices stand for themselves.
  c10::Device stand_in(c10::Device device);
  /// The same for a table that has it; throws c10::Error naming the device otherwise.
  c10::Device stand_in(c10::Device device) const;
  /// What a meta device stands for; one without an index, for the first. Other devices are themselves.
  c10::Device real(c10::Device device) const;

  const std::vector<c10::Device>& all() const {
    return devices_;
  }

 private:
  std::vector<c10::Device> devices_;
};

} // namespace recals
