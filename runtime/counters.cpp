#include "runtime/counters.h"

namespace recals {

Counters& counters() {
  static Counters instance;
  return instance;
}

void reset_counters() {
  auto& c = counters();
  for (auto* counter :
       {&c.calls,
        &c.plain_calls,
        &c.mismatches,
        &c.dropped_slots,
        &c.replays,
        &c.recomputed_nodes,
        &c.recomputed_bytes,
        &c.recompute_nanoseconds,
        &c.packs,
        &c.unpacks,
        &c.rng_saves,
        &c.rng_restores}) {
    counter->store(0);
  }
}

} // namespace recals
