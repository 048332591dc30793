#pragma once

/// Autocast as it was in the forward, so that a replay outside the autocast block casts the same way.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "recals/export.h"

namespace recals {

struct RECALS_API AutocastState {
  struct PerDevice {
    c10::DeviceType type;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<PerDevice> devices; ///< of `current`: every type that torch casts on
  bool cache_enabled = true;

  static AutocastState current();
  /// Sets what differs from the present state.
  void set() const;

  /// What a step on devices of `types` is told apart by: " under autocast(cpu: bf16)", with ", uncached" if weights are cast
  /// at each use; "" if nothing is cast.
  std::string text(const std::set<c10::DeviceType>& types) const;
  /// The state that a text ends in, and the text before it. Throws c10::Error for what `text` did not write.
  static std::pair<std::string, std::optional<AutocastState>> parse(const std::string& text);
};

class RECALS_API AutocastGuard {
 public:
  explicit AutocastGuard(AutocastState state) : outer_(AutocastState::current()) {
    // A weight's cast made in a replay must not outlive it.
    state.cache_enabled = false;
    state.set();
  }
  ~AutocastGuard() {
    outer_.set();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  AutocastState outer_;
};

} // namespace recals
