"""What is said when a budget may not hold: a class of its own, which filters know."""

import subprocess
import sys
import warnings

import pytest
import recals
from recals import _C


def test_a_warning_has_a_class_of_its_own() -> None:
    assert issubclass(recals.BudgetWarning, UserWarning)
    with pytest.warns(recals.BudgetWarning, match="recals: too much"):
        _C.budget_warning("recals: too much")


def test_a_filter_makes_it_an_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.BudgetWarning)
        with pytest.raises(recals.BudgetWarning, match="recals: too much"):
            _C.budget_warning("recals: too much")


def test_a_filter_silences_it() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", recals.BudgetWarning)
        _C.budget_warning("recals: too much")
    assert heard == []


def test_the_process_ends_as_usual_with_the_handler_in_place() -> None:
    code = "import atexit, recals; from recals import _C; atexit.register(lambda: _C.budget_warning('recals: late'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "BudgetWarning: recals: late" in done.stderr
