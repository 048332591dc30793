#pragma once

/// Budgets as people write them.

#include <string>
#include <string_view>
#include <variant>

#include "passes/plan/step_graph.h"

namespace recals::plan {

struct Limit {
  enum class Kind : uint8_t {
    Bytes,
    Share, ///< a fraction of the plain step's own peak
    Min, ///< the smallest budget that works
    Auto, ///< what the device has free, less what training needs besides
  };
  Kind kind = Kind::Bytes;
  int64_t bytes = 0;
  double fraction = 0;
};

/// Why a text is no budget, in one sentence that quotes it and says what is accepted.
struct BadBudget {
  std::string message;
};

/// Accepts "536870912", "512MiB", "1.5 GB", "8GiB" (KiB MiB GiB TiB are powers of 1024, kB MB GB TB of 1000; case
/// matters only for the B), "50%", "min", "auto". Refuses 0, negatives, NaN, infinities, unknown units, more than 2^62 bytes; percents
/// must be above 0 and at most 100.
std::variant<Limit, BadBudget> parse_limit(std::string_view text);

/// Bytes of a limit of the kind Bytes or Share, where the plain step peaks at `plain_peak` bytes (rounded down, so never
/// above the fraction).
int64_t bytes_of(const Limit& limit, int64_t plain_peak);

/// The least share of the plain step's peak that is at least `bytes`, as `parse_limit` reads it, to a tenth of a per cent:
/// "18.3%". Empty if no share is.
std::string percent_for(int64_t bytes, int64_t plain_peak);

/// "512.0 MiB", for messages.
std::string human_bytes(int64_t bytes);

} // namespace recals::plan
