"""Recals trains a TorchScript module inside a memory budget, without changing a bit of its gradients.

    import recals
    net = recals.optimize(torch.jit.script(model), (x,), "50%")

Importing the package also registers the ``recals::`` operators, which is all that a saved, rewritten module needs.
"""

from pathlib import Path

from recals import passes
from recals._errors import BudgetError, RecalsError
from recals._load import __version__
from recals.counting import counters, reset_counters
from recals.estimation import Estimate, estimate
from recals.memory import MemoryUse, track_memory
from recals.optimization import optimize, plan_of, restore
from recals.passes import register_pass, unregister_pass

cmake_prefix_path: str = str(Path(__file__).parent / "share" / "cmake")
"""For C++ programs: ``cmake -DCMAKE_PREFIX_PATH=...``, then ``find_package(recals)``."""

__all__ = [
    "BudgetError",
    "Estimate",
    "MemoryUse",
    "RecalsError",
    "__version__",
    "cmake_prefix_path",
    "counters",
    "estimate",
    "optimize",
    "passes",
    "plan_of",
    "register_pass",
    "reset_counters",
    "restore",
    "track_memory",
    "unregister_pass",
]
