"""Run by `test_save_load.py` in a process of its own: loads a saved module and trains on.

    python resume.py MODULE OUT FIRST_SEED STEPS

Writes to OUT the gradients, parameters and buffers after the steps, and the highest peak of a step.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import recals
import torch
from conftest import THREADS
from support import features, run
from training import measured_peak, named_gradients, named_state, prepare_gradients


def main() -> None:
    path, out, first_seed, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(THREADS)
    module = torch.jit.load(path)
    prepare_gradients(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    inputs = (features(),)
    peaks = []
    recals.reset_counters()
    for seed in range(first_seed, first_seed + steps):
        optimizer.zero_grad(set_to_none=False)
        peaks.append(measured_peak(lambda seed=seed: run(module, inputs, seed=seed)))
        optimizer.step()
    result = {
        "state": {name: tensor.detach() for name, tensor in named_state(module)},
        "gradients": dict(named_gradients(module)),
        "peak": max(peaks),
        "recomputed_nodes": recals.counters()["recomputed_nodes"],
    }
    torch.save(result, out)


if __name__ == "__main__":
    main()
