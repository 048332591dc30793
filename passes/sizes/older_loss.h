#pragma once

#include <cstdint>

namespace recals {

/// Files before this format were planned for a stand-in of four units. Note [The stand-in for a loss]
constexpr int64_t kFirstFormatWithFiveUnits = 4;

/// While it lives, that is what this thread takes for a loss that is not known: older plans are checked as they were made.
class OlderStandIn {
 public:
  OlderStandIn();
  ~OlderStandIn();
  OlderStandIn(const OlderStandIn&) = delete;
  OlderStandIn& operator=(const OlderStandIn&) = delete;

 private:
  const int outer_;
};

} // namespace recals
