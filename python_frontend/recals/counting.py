"""What the runtime has done in this process."""

from __future__ import annotations

from recals._load import _C


def counters() -> dict[str, int | float]:
    """calls, plain_calls, mismatches (training steps that a plan could not hold within its budget), dropped_slots,
    replays, recomputed_nodes, recomputed_bytes, recompute_seconds, packs, unpacks, rng_saves, rng_restores (generator
    states stored for a replay, and set for one) since the start or the last `reset_counters`."""
    result: dict[str, int | float] = _C.counters()
    return result


def reset_counters() -> None:
    """Counts from zero."""
    _C.reset_counters()
