"""Trains rewritten files in a process that knows nothing but them and `import recals`.

usage: train_files.py NAME=FILE...     names are those of examples/zoo.py

Prints JSON: of each the digests of the gradients of a step, its peak in bytes, what was recomputed and unpacked.
"""

import json
import sys
from pathlib import Path

import recals
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import training  # noqa: E402
from conftest import threads_for  # noqa: E402
from zoo import ZOO  # noqa: E402


def main(files: list[str]) -> None:
    results = {}
    for entry in files:
        name, _, file = entry.partition("=")
        torch.set_num_threads(threads_for({name}, close=True))  # as in the test that made the file
        specimen, module = ZOO[name](), torch.jit.load(file)
        peak = specimen.measured_peak(module)
        recals.reset_counters()
        specimen.step(module)()
        counted = recals.counters()
        results[name] = {
            "gradients": training.digests(training.named_gradients(module)),
            "peak": peak,
            "recomputed_nodes": counted["recomputed_nodes"],
            "unpacks": counted["unpacks"],
        }
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
