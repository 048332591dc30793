"""What is said when a budget may not hold: a class of its own, which filters know."""

import subprocess
import sys
import warnings

import pytest
import recals
import torch
from recals import _C
from support import features, net, rewrite, run, twins
from torch import nn
from training import differing, named_gradients


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


# ----------------------------------------------------------------------------------------------------------------------
# A backward that is differentiated


def penalised(module: nn.Module, x: torch.Tensor) -> None:
    (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    slope.square().mean().backward()


def test_a_differentiated_backward_says_so_once_for_each_module() -> None:
    x = features().requires_grad_()
    plain, budgeted = twins(net().eval(), (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(budgeted, (x,))  # a plain backward
        run(budgeted, (x,), between=lambda: recals.estimate(budgeted, (x,)))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            penalised(budgeted, x)
    (told,) = [warning for warning in heard if warning.category is recals.BudgetWarning]
    assert "create_graph=True" in str(told.message)
    for parameter in (*plain.parameters(), *budgeted.parameters()):
        parameter.grad = None
    penalised(plain, x)
    penalised(budgeted, x)
    assert differing(dict(named_gradients(plain)), dict(named_gradients(budgeted))) == []
    _, other = twins(net().eval(), (x,))
    with pytest.warns(recals.BudgetWarning, match="create_graph=True"):
        penalised(other, x)


def test_a_differentiated_backward_can_be_an_error() -> None:
    x = features().requires_grad_()
    _, budgeted = twins(net().eval(), (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.BudgetWarning)
        with pytest.raises(recals.BudgetWarning, match="create_graph=True"):
            penalised(budgeted, x)


def test_looking_at_a_slot_is_no_backward() -> None:
    x = features().requires_grad_()
    budgeted = rewrite(
        nn.Sequential(nn.Linear(24, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 8)), (x,)
    )
    y = budgeted(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert y.grad_fn._saved_mat1 is not None
