"""Measures the machine at hand and writes the constants that times are estimated with."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recals._load import _C
from recals.arguments import CostModel, cost_model_text

BATCHES = 10
SECONDS_PER_BATCH = 0.01
HELD_BYTES = 1 << 26
MOST_HELD = 256
MOST_CALLS = 10_000
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
ELEMENTS = (1 << 18, 1 << 20, 1 << 22)
"""Sizes of activations: 1, 4 and 16 MiB in f32. The rates are geometric means over them."""

Op = Callable[[], Tensor]
Moving = Callable[[Tensor], tuple[Op, int]]
"""From a tensor to an op on it, and how many times the op moves its bytes."""


def calibrate(device: str = "cpu", path: str | os.PathLike[str] | None = None) -> Path:
    """Measures matrix products, convolutions, pointwise ops, reductions, copies, transcendental functions, random
    numbers and the cost of a call on `device`, with the present number of threads, and writes the result as a cost
    model. Takes some seconds. Leaves the random streams as they are.

    Args:
        device: "cpu", "cuda", "cuda:1", ...
        path: the file to write; by default the one that ``cost_model="calibrated"`` reads, in the user's cache folder
            ($XDG_CACHE_HOME or ~/.cache).

    Returns:
        The path that was written, for ``cost_model=`` or the environment variable RECALS_COST_MODEL.
    """
    where = torch.device(device)
    target = Path(_C.calibrated_path(where.type) if path is None else path)
    text = json.dumps(_Machine(where).measured(), indent=2) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whole and good, or not at all: another process may be reading it.
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        _C.cost_model_text(name, where.type)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def cost_model(device: str = "cpu", cost_model: CostModel | None = None) -> dict[str, Any]:
    """The constants that `optimize` and `estimate` would go by on `device` for this `cost_model`: the content of the
    file. Raises RecalsError if there is none, or if it is not a good one; "profile" is none."""
    constants: dict[str, Any] = json.loads(_C.cost_model_text(cost_model_text(cost_model), torch.device(device).type))
    return constants


class _Machine:
    """One device, and the tensors to measure it with."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(0)

    def measured(self) -> dict[str, Any]:
        with torch.no_grad():
            tiny = self._tensor(4)
            call = self._seconds(lambda: tiny + tiny)
            # Whatever else an op does, it also moves its bytes.
            pointwise = self._bytes_per_second(
                [lambda x: (lambda: x + x, 3), lambda x: (lambda: torch.relu(x), 2)], call
            )
            return {
                "format": 1,
                "name": f"calibrated {self.device.type}",
                "device": self.device.type,
                "threads": torch.get_num_threads(),
                "seconds_per_call": call,
                "matmul_flops_per_second": self._by_dtype(self._matmul, call),
                "convolution_flops_per_second": self._by_dtype(self._convolution, call),
                "bytes_per_second": {
                    "pointwise": pointwise,
                    "reduction": self._bytes_per_second(
                        [lambda x: (lambda: x.sum(-1), 1), lambda x: (lambda: F.layer_norm(x, x.shape[-1:]), 2)], call
                    ),
                    "copy": self._bytes_per_second([lambda x: (lambda: x.clone(), 2)], call),
                },
                "seconds_per_element": {
                    "random": self._seconds_per_element(
                        [lambda x: lambda: torch.empty_like(x).bernoulli_(0.9, generator=self.generator)],
                        pointwise,
                        call,
                    ),
                    "transcendental": self._seconds_per_element(
                        [
                            lambda x: lambda: torch.exp(x),
                            lambda x: lambda: torch.tanh(x),
                            lambda x: lambda: torch.sigmoid(x),
                            lambda x: lambda: F.gelu(x),
                        ],
                        pointwise,
                        call,
                    ),
                    "batch_norm": self._seconds_per_element(
                        [lambda x: partial(F.batch_norm, x.view(16, 32, -1), None, None, training=True)],
                        pointwise,
                        call,
                    ),
                    # Pooling mostly follows ReLU, and comparing its zeros is quicker than comparing noise.
                    "pooling": self._seconds_per_element(
                        [lambda x: partial(F.max_pool2d, x.relu().view(8, -1, 64, 64), 2)], pointwise, call
                    ),
                },
            }

    def _tensor(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device, generator=self.generator)

    def _seconds(self, op: Op) -> float:
        """Of one call: the quickest of some batches, since others use the machine, too.

        A result is let go only when many more were made, so that a call writes to memory that is there but in no cache,
        as in a step. Writing to the same block again and again would show a machine several times as fast."""
        start = self._now()
        held = [op(), op()]
        seconds = (self._now() - start) / len(held)
        size = max(1, min(MOST_HELD, HELD_BYTES // max(held[0].nbytes, 1)))
        count = min(MOST_CALLS, max(1, math.ceil(SECONDS_PER_BATCH / max(seconds, 1e-7))))
        while len(held) < size and len(held) < count:
            held.append(op())
        best = math.inf
        for _ in range(BATCHES if seconds < SECONDS_PER_BATCH else 2):
            start = self._now()
            for number in range(count):
                held[number % len(held)] = op()
            best = min(best, (self._now() - start) / count)
        return best

    def _now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        elif torch.get_num_threads() == 1:
            return time.thread_time()  # stands still while others have the processor
        return time.perf_counter()

    def _bytes_per_second(
        self, makers: list[Callable[[Tensor], tuple[Callable[[], Tensor], int]]], call: float
    ) -> float:
        rates = []
        for elements in ELEMENTS:
            x = self._tensor(elements // 256, 256)
            for make in makers:
                op, times = make(x)
                rates.append(times * x.nbytes / _beyond(self._seconds(op), call))
        return _mean(rates)

    def _seconds_per_element(self, makers: list[Callable[[Tensor], Op]], pointwise: float, call: float) -> float:
        """What an op takes for an element of its result besides moving its bytes once each way."""
        seconds = []
        for elements in ELEMENTS:
            x = self._tensor(elements)
            moving = 2 * x.nbytes / pointwise
            for make in makers:
                op = make(x)
                seconds.append(_beyond(self._seconds(op), call + moving) / op().numel())
        return _mean(seconds)

    def _by_dtype(self, measure: Callable[[torch.dtype, float], float], call: float) -> dict[str, float]:
        """f32, and what else the device can do."""
        rates = {}
        for name, dtype in DTYPES.items():
            try:
                rates[name] = measure(dtype, call)
            except RuntimeError:  # not implemented for this dtype
                if dtype == torch.float32:
                    raise
        return rates

    def _matmul(self, dtype: torch.dtype, call: float) -> float:
        rates = []
        for rows, inner, columns in ((1024, 256, 1024), (512, 512, 512), (1024, 1024, 256)):
            a, b = self._tensor(rows, inner).to(dtype), self._tensor(inner, columns).to(dtype)
            flops = 2.0 * rows * inner * columns
            rates.append(flops / _beyond(self._seconds(partial(torch.matmul, a, b)), call))
        return _mean(rates)

    def _convolution(self, dtype: torch.dtype, call: float) -> float:
        rates = []
        for inside, outside, kernel, stride, side in ((3, 64, 7, 2, 112), (64, 64, 3, 1, 28), (256, 256, 3, 1, 7)):
            x = self._tensor(8, inside, side, side).to(dtype)
            weight = self._tensor(outside, inside, kernel, kernel).to(dtype)
            op = partial(F.conv2d, x, weight, stride=stride, padding=kernel // 2)
            flops = 2.0 * op().numel() * inside * kernel**2
            rates.append(flops / _beyond(self._seconds(op), call))
        return _mean(rates)


def _beyond(seconds: float, known: float) -> float:
    """`seconds` without what is known to be something else; never nothing, which would be an infinite rate."""
    return max(seconds - known, seconds / 20)


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
