"""Fixtures and settings of the tests of the Python package.

The tests train the models of `examples/`. They compare bits, never with a tolerance, and count bytes exactly.

    pytest test/python               all of it, minutes
    pytest test/python -m smoke      a quick subset, which touches each part once
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Threads that spin while they wait take the core from those that work. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

# How many threads share an operator decides in which order it sums: the same everywhere, so the same bits everywhere.
# One, because threads that wait for each other on a busy machine make times meaningless.
THREADS = 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit.*:FutureWarning")
    config.addinivalue_line("filterwarnings", "ignore:.*torch.jit.*:DeprecationWarning")
    torch.set_num_threads(THREADS)


def threads_for(named: set[str], close: bool) -> int:
    """Predictions hold for as many threads as there are cores; on one, some convolutions copy less. So what is to be
    `close`, and what is about the U-Net, takes all. Scatter-adds of several threads sum in any order, so the graph net
    has one."""
    return len(os.sched_getaffinity(0)) if (close or "unet" in named) and "graph" not in named else THREADS


def threads_of(node: pytest.Item) -> int:
    callspec = getattr(node, "callspec", None)
    arguments = list(callspec.params.values()) if callspec is not None else []
    words = [word for argument in arguments for word in (argument if isinstance(argument, tuple) else (argument,))]
    named = {word for word in words if isinstance(word, str)}
    return threads_for(named, node.get_closest_marker("all_threads") is not None)


@pytest.fixture(autouse=True)
def own_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_num_threads(threads_of(request.node))
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture
def forget_compiled() -> Iterator[None]:
    """What torch.compile knows ends with the test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def own_random_stream() -> None:
    """Every test starts from one seed, whichever tests ran before it."""
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Shows what tests recorded under "table", one line each."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    lines = [value for report in reports for name, value in report.user_properties if name == "table"]
    if lines:
        terminalreporter.section("budgets and peaks in MiB, time against the plain step")
        for line in lines:
            terminalreporter.write_line(line)
