#pragma once

/// What the runtime has done in this process, for tests and for people.

#include <atomic>
#include <cstdint>

#include "recals/export.h"

namespace recals {

struct Counters {
  std::atomic<int64_t> calls{0}; ///< training calls of rewritten modules
  std::atomic<int64_t> plain_calls{0}; ///< calls that went to the plain method
  std::atomic<int64_t> mismatches{0}; ///< training steps that the plan cannot hold within the budget (mismatch.h)
  std::atomic<int64_t> dropped_slots{0};
  std::atomic<int64_t> replays{0}; ///< first needs that started a recomputation
  std::atomic<int64_t> recomputed_nodes{0};
  std::atomic<int64_t> recomputed_bytes{0}; ///< bytes of the outputs of replayed nodes
  std::atomic<int64_t> recompute_nanoseconds{0};
  std::atomic<int64_t> packs{0}; ///< storages that were packed
  std::atomic<int64_t> unpacks{0};
  std::atomic<int64_t> rng_saves{0}; ///< generator states that were stored for a replay
  std::atomic<int64_t> rng_restores{0}; ///< and set for one
};

RECALS_API Counters& counters();
RECALS_API void reset_counters();

} // namespace recals
