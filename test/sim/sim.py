"""The simulated accelerator, in Python (README.md).

`import sim`, before the process runs its first backward, makes devices "sim:0", "sim:1", ... Bytes are exact and per
device. Devices are given by their number.
"""

import atexit
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import recals
import torch
from torch import Tensor

NAME = "sim"


def _library() -> Path:
    """Built beside the package where that is imported from a build tree, else by `./dev`."""
    root = Path(__file__).resolve().parents[2]
    package = Path(recals.__file__).parent
    release = torch.__version__.partition("+")[0]
    in_tree = package.parents[1] / "test" / "sim"
    folder = in_tree if in_tree.is_dir() else root / "build" / f"torch-{release}" / "test" / "sim"
    library = folder / f"librecals_sim-{torch.__version__}.so"
    if not library.exists():
        raise ImportError(
            f"the simulated accelerator was not built for torch {torch.__version__}: there is no {library}"
        )
    return library


torch.ops.load_library(_library())
torch.utils.rename_privateuse1_backend(NAME)
_ops = torch.ops.recals_sim

device_count: Callable[[], int] = _ops.device_count
DEVICES = [f"{NAME}:{index}" for index in range(device_count())]

memory_allocated: Callable[[int], int] = _ops.memory_allocated
max_memory_allocated: Callable[[int], int] = _ops.max_memory_allocated
out_of_memory: Callable[[int], int] = _ops.out_of_memory
reset_peak: Callable[[int], None] = _ops.reset_peak
launches: Callable[[int, int], int] = _ops.launches
"""Kernels launched on a stream (its id) of a device."""
take_hazards: Callable[[], list[str]] = _ops.take_hazards
"""Uses of memory since the last call that no event orders: races, if streams were asynchronous."""
blocks_recorded_on: Callable[[int, int], int] = _ops.blocks_recorded_on


def set_capacity(device: int, capacity: int | None) -> None:
    """More bytes than that are never live: torch.OutOfMemoryError. None: no limit."""
    _ops.set_capacity(device, capacity)


@contextmanager
def capacities(more: dict[int, int]) -> Iterator[None]:
    """Inside, each device has so many bytes beyond those that are live now."""
    for device, bytes_more in more.items():
        set_capacity(device, memory_allocated(device) + bytes_more)
    try:
        yield
    finally:
        for device in more:
            set_capacity(device, None)


def backward_threads() -> list[str]:
    """The threads that the autograd engine has made for devices, by name."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("pt_autograd_")]


@atexit.register
def _stop_backward_threads() -> None:
    """A device's thread may be the last to hold what a backward ran with, Python objects among it. If it lets go of it
    while Python finalises, taking the lock of the interpreter ends the thread inside a destructor: the process aborts.
    """
    _ops.stop_backward_threads()
    deadline = time.monotonic() + 10
    while backward_threads() and time.monotonic() < deadline:
        time.sleep(0.001)  # lets them have the lock


def manual_seed(seed: int) -> None:
    """Of every device; torch.manual_seed does it too."""
    for index in range(device_count()):
        _ops.manual_seed(index, seed)


def get_rng_state(device: "int | str | torch.device" = 0) -> Tensor:
    return _ops.get_rng_state(_index(device))


def set_rng_state(state: Tensor, device: "int | str | torch.device" = 0) -> None:
    _ops.set_rng_state(_index(device), state)


def _index(device: "int | str | torch.device") -> int:
    index = device if isinstance(device, int) else torch.device(device).index
    return _ops.current_device() if index is None else index


def _module() -> types.ModuleType:
    """torch.sim, by which torch finds what it asks of any backend."""
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module._lazy_init = lambda: None  # without it torch 2.11 takes the devices for unused, and does not wait for them
    module._is_in_bad_fork = lambda: False
    module.device_count = device_count
    module.current_device = _ops.current_device
    module.set_device = lambda device: _ops.set_device(_index(device))
    module.manual_seed = module.manual_seed_all = manual_seed
    module.get_rng_state = get_rng_state
    module.set_rng_state = set_rng_state
    return module


torch._register_device_module(NAME, _module())
sys.modules[f"torch.{NAME}"] = getattr(torch, NAME)
