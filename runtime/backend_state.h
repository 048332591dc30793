#pragma once

/// The switches of torch's backends (oneDNN, attention, cuDNN, determinism, precisions, threads, the default dtype) as they
/// were in the forward: they decide which kernels run and to which bits.
///
/// They belong to the process, not to a thread. So a replay touches only those that have changed since its forward, which
/// are none in most programs.

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <c10/core/DeviceType.h>

#include "recals/export.h"
#include "runtime/checksum.h"

namespace recals {

class RECALS_API BackendState {
 public:
  static BackendState current();
  /// Sets what differs from the present state.
  void set() const;

  bool operator==(const BackendState& other) const = default;

  /// Of all switches: other than that of a state with another one.
  Checksum checksum() const;

  /// What a step on devices of `types` is told apart by: the switches that choose other kernels or sizes, where they are not
  /// as torch has them at first: " with oneDNN off, attention: math"; "" if all are. How many threads run, and in which
  /// precision, is not in it: it changes no plan.
  std::string text(const std::set<c10::DeviceType>& types) const;
  /// The text without such an end, and the present state with the switches that the end names set so; nothing if there is no
  /// such end. Throws c10::Error for what `text` did not write.
  static std::pair<std::string, std::optional<BackendState>> parse(const std::string& text);

 private:
  static constexpr size_t kSwitches = 37;

  std::array<int64_t, kSwitches> values_{};
};

class RECALS_API BackendGuard {
 public:
  explicit BackendGuard(const BackendState& state);
  ~BackendGuard();
  BackendGuard(const BackendGuard&) = delete;
  BackendGuard& operator=(const BackendGuard&) = delete;

 private:
  std::optional<BackendState> outer_; ///< nothing if it was the same
};

} // namespace recals
