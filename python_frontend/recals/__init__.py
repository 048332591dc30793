"""Recals trains a model inside a memory budget, without changing a bit of its gradients.

    import recals
    recals.optimize(model, budget="8GiB")

Importing the package also registers the ``recals::`` operators, which is all that a saved, rewritten module needs.
"""

from pathlib import Path

from recals import passes
from recals._errors import BudgetError, BudgetWarning, CaptureWarning, RecalsError
from recals._load import __version__
from recals.calibration import calibrate, cost_model
from recals.counting import counters, reset_counters
from recals.debugging import debug
from recals.estimation import estimate
from recals.memory import MemoryUse, track_memory
from recals.optimization import optimize, plan_of, restore
from recals.passes import register_pass, unregister_pass
from recals.report import Report
from recals.tradeoff import ParetoCurve, pareto
from recals.verification import Verification, verify

cmake_prefix_path: str = str(Path(__file__).parent / "share" / "cmake")
"""For C++ programs: ``cmake -DCMAKE_PREFIX_PATH=...``, then ``find_package(recals)``."""

__all__ = [
    "BudgetError",
    "BudgetWarning",
    "CaptureWarning",
    "MemoryUse",
    "ParetoCurve",
    "RecalsError",
    "Report",
    "Verification",
    "__version__",
    "calibrate",
    "cmake_prefix_path",
    "cost_model",
    "counters",
    "debug",
    "estimate",
    "optimize",
    "pareto",
    "passes",
    "plan_of",
    "register_pass",
    "reset_counters",
    "restore",
    "track_memory",
    "unregister_pass",
    "verify",
]
