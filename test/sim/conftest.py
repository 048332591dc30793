"""The tests over the simulated accelerator.

A process of their own (`pytest test/sim`): there is at most one backend besides CPU and CUDA, and torch prefers it to
CUDA wherever it looks for "the" accelerator.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Threads that spin while they wait take the core from those that work. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "test" / "python")]

import sim  # noqa: E402 (before anything runs a backward)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit.*:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit.*:DeprecationWarning")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def clean_devices() -> Iterator[None]:
    """Each test starts from one seed, leaves nothing on the devices, and uses no memory of another stream unordered."""
    torch.manual_seed(0)
    for device in range(sim.device_count()):
        sim.reset_peak(device)
    yield
    gc.collect()
    assert sim.take_hazards() == []
    assert [sim.memory_allocated(device) for device in range(sim.device_count())] == [0] * sim.device_count()
