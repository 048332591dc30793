"""Trains rewritten files in a process that knows nothing but them and `import recals`.

usage: train_files.py OUT NAME=FILE...     names are those of examples/models.py

For each: gradients and peak of step 0, and how many nodes were recomputed, saved to OUT.
"""

import sys
from pathlib import Path

import recals
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import models  # noqa: E402
import training  # noqa: E402
from conftest import threads_for  # noqa: E402


def main(out: str, files: list[str]) -> None:
    results = {}
    for entry in files:
        name, _, file = entry.partition("=")
        torch.set_num_threads(threads_for(name))
        trainee = training.Trainee(models.build(name, "small"), torch.jit.load(file))
        recals.reset_counters()
        peak = training.measured_peak(trainee.gradients(0))
        gradients = {key: gradient.clone() for key, gradient in training.named_gradients(trainee.module)}
        results[name] = {
            "peak": peak,
            "recomputed_nodes": recals.counters()["recomputed_nodes"],
            "unpacks": recals.counters()["unpacks"],
            "gradients": gradients,
        }
    torch.save(results, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
