"""Recals on a GPU, checked without building anything there: gradients bit by bit, peaks, times.

    python benchmarks/gpu_check.py prepare FOLDER [--workloads mlp gpt] [--size full] [--device cuda:0]
    python FOLDER/gpu_check.py run FOLDER [--device cuda:0] [--pairs 7]

`prepare` runs where Recals is built, without a GPU: it plans each workload for the device, and leaves in FOLDER the
rewritten modules, the batches, Recals' runtime libraries and this script. `run` needs that folder, the torch release
that the libraries were built for, and no Recals: the files are TorchScript, the libraries know no Python, so any Python
that this torch supports will do. It prints a table, writes FOLDER/result.json, and exits with 1 if a gradient differs
from the plain eager module's, a random stream is elsewhere afterwards, or a peak is above its prediction.

Per workload: the plain eager module, torch.utils.checkpoint around every block, and Recals at each budget. Peaks are
those of the allocator above the start of the step. Times are medians over neighbouring pairs with a plain step.
`prepare --device cpu` and `run --device cpu` rehearse it all on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Deterministic matrix products; what Recals plans for them depends on it, too.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import models
import torch
from checkpointing import checkpoint_blocks
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
SOURCES = [HERE / "gpu_check.py", HERE.parent / "examples" / "models.py", HERE.parent / "examples" / "checkpointing.py"]
"""What goes along."""

FRACTIONS = ["75%", "50%", "25%"]


# ----------------------------------------------------------------------------------------------------------------------
# Where Recals is


def planned(scripted: torch.jit.ScriptModule, inputs: tuple[Tensor, ...], budget: str, device: str) -> Any:
    """At the smallest budget that works where `budget` does not."""
    import recals

    try:
        return recals.optimize(scripted, inputs, budget, target_device=device)
    except recals.BudgetError as error:
        return recals.optimize(scripted, inputs, error.smallest, target_device=device)


def prepare(folder: Path, names: list[str], size: str, device: str) -> None:
    import recals

    torch.use_deterministic_algorithms(True)  # a plan is made under the switches that its step runs under
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    for source in SOURCES:
        shutil.copy(source, folder)
    for library in sorted((Path(recals.__file__).parent / "lib").glob("librecals_*.so")):
        shutil.copy(library, folder / "lib")
    entries = []
    for name in names:
        workload = models.build(name, size)
        inputs, targets = workload.make_batch(0)
        torch.save(
            {"state": workload.module.state_dict(), "inputs": inputs, "targets": targets}, folder / f"{name}.data"
        )
        scripted = torch.jit.script(copy.deepcopy(workload.module))
        for budget in FRACTIONS:
            start = time.perf_counter()
            module = planned(scripted, inputs, budget, device)
            (line,) = recals.plan_of(module)["devices"]
            file = f"{name}-{budget.rstrip('%')}.pt"
            module.save(folder / file)
            entries.append(
                {"workload": name, "file": file, "asked": budget, "budget": line["budget"], "predicted": line["peak"]}
            )
            print(
                f"{file}: budget {line['budget']}, peak {line['peak']}, {time.perf_counter() - start:.1f} s", flush=True
            )
    manifest = {
        "torch": torch.__version__,
        "recals": recals.__version__,
        "size": size,
        "device": device,
        "plans": entries,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))


# ----------------------------------------------------------------------------------------------------------------------
# Where the GPU is


class Step:
    """A module in training, from a fixed batch."""

    def __init__(
        self, module: nn.Module, workload: models.Workload, data: dict[str, Any], device: torch.device
    ) -> None:
        self.module = module.to(device)
        self.workload = workload
        self.device = device
        self.inputs = tuple(tensor.to(device) for tensor in data["inputs"])
        self.targets = data["targets"].to(device)
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def run(self) -> None:
        self.workload.loss(self.module(*self.inputs), self.targets).backward()

    def outcome(self) -> tuple[list[Tensor], Tensor]:
        """Gradients of a step from seed 1, and where the random stream is afterwards."""
        for parameter in self.module.parameters():
            parameter.grad.zero_()
        torch.manual_seed(1)
        self.run()
        stream = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else torch.get_rng_state()
        return [parameter.grad.clone() for parameter in self.module.parameters()], stream

    def seconds(self) -> float:
        wait(self.device)
        start = time.perf_counter()
        self.run()
        wait(self.device)
        return time.perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_of(step: Callable[[], None], device: torch.device) -> int:
    """Bytes: the most that the allocator had handed out above the start."""
    gc.collect()
    if device.type == "cuda":
        wait(device)
        start = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        wait(device)
        return torch.cuda.max_memory_allocated(device) - start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.profiler.profile(profile_memory=True, use_kineto=True) as profiler:
            step()
    events = profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def contender(step: Step, plain: Step, pairs: int) -> dict[str, Any]:
    (mine, stream), (theirs, expected) = step.outcome(), plain.outcome()
    ratios = [step.seconds() / plain.seconds() for _ in range(pairs)]
    return {
        "peak": peak_of(step.run, step.device),
        "same_gradients": all(map(same_bits, mine, theirs)),
        "same_stream": torch.equal(stream, expected),
        "time": statistics.median(ratios),
    }


def rows_of(name: str, plans: list[dict[str, Any]], folder: Path, size: str, device: torch.device, pairs: int) -> Any:
    data = torch.load(folder / f"{name}.data", weights_only=True)
    workload = models.build(name, size)
    workload.module.load_state_dict(data["state"])

    def step_of(module: nn.Module) -> Step:
        return Step(module, workload, data, device)

    plain = step_of(copy.deepcopy(workload.module))
    first = plain.outcome()[0]
    again = plain.outcome()[0]
    plain_peak = peak_of(plain.run, device)
    repeats = all(map(same_bits, first, again))
    yield {
        "workload": name,
        "what": "plain",
        "peak": plain_peak,
        "same_gradients": repeats,
        "same_stream": True,
        "time": 1,
    }
    checkpointed = step_of(checkpoint_blocks(name, copy.deepcopy(workload.module)))
    yield {"workload": name, "what": "checkpoint", **contender(checkpointed, plain, pairs)}
    del checkpointed
    for plan in plans:
        step = step_of(torch.jit.load(folder / plan["file"]))
        yield {**plan, "what": f"recals {plan['asked']}", **contender(step, plain, pairs)}
        del step


def faults_of(row: dict[str, Any]) -> list[str]:
    """What must not be, of the rows that Recals answers for."""
    if "predicted" not in row:
        return []
    faults = []
    if not row["same_gradients"]:
        faults.append("gradients differ")
    if not row["same_stream"]:
        faults.append("the random stream is elsewhere")
    if row["peak"] > row["predicted"]:
        faults.append("above the prediction")
    if row["peak"] > row["budget"]:
        faults.append("above the budget")
    return faults


def run(folder: Path, device: torch.device, pairs: int) -> int:
    manifest = json.loads((folder / "manifest.json").read_text())
    if manifest["torch"].split("+")[0] != torch.__version__.split("+")[0]:
        sys.exit(f"gpu_check: the folder was prepared for torch {manifest['torch']}, and this is {torch.__version__}")
    if torch.device(manifest["device"]) != device:
        sys.exit(f"gpu_check: the plans are for {manifest['device']}, and --device says {device}")
    for library in ["librecals_runtime.so", *(["librecals_cuda.so"] if device.type == "cuda" else [])]:
        torch.ops.load_library(folder / "lib" / library)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    start = time.perf_counter()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, as a rehearsal"
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {name}")
    head = ["workload", "what", "budget MB", "predicted MB", "peak MB", "of plain", "time", "same bits", ""]
    print("| " + " | ".join(head) + " |\n|" + "-|" * len(head))
    rows = []
    plain_peak = 0
    for workload in dict.fromkeys(plan["workload"] for plan in manifest["plans"]):
        plans = [plan for plan in manifest["plans"] if plan["workload"] == workload]
        for row in rows_of(workload, plans, folder, manifest["size"], device, pairs):
            row["faults"] = faults_of(row)
            rows.append(row)
            plain_peak = row["peak"] if row["what"] == "plain" else plain_peak
            cells = [
                workload,
                row["what"],
                *(f"{row[key] / 1e6:.1f}" if key in row else "" for key in ("budget", "predicted", "peak")),
                f"{row['peak'] / plain_peak:.2f}",
                f"{row['time']:.2f}",
                "yes" if row["same_gradients"] else "NO",
                ", ".join(row["faults"]),
            ]
            print("| " + " | ".join(cells) + " |", flush=True)
    seconds = time.perf_counter() - start
    result = {**manifest, "ran_on": name, "python": sys.version.split()[0], "seconds": seconds, "rows": rows}
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    bad = sum(bool(row["faults"]) for row in rows)
    print(f"{len(rows)} rows in {seconds:.0f} s, {bad} with faults")
    return 1 if bad else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["prepare", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workloads", nargs="+", default=["mlp", "gpt", "encoder", "unet", "uneven"])
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--pairs", type=int, default=7, help="timed pairs of steps for each row")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*torch.jit.*")
    if options.command == "prepare":
        prepare(options.folder, options.workloads, options.size, options.device)
        return 0
    return run(options.folder, torch.device(options.device), options.pairs)


if __name__ == "__main__":
    sys.exit(main())
