"""Which ops depend on grad mode or on which inputs require grad: a census of torch's list against what replays do."""

import grad_mode_ops as ops
import pytest
import recals
import torch
from torch._ops import OpOverload

pytestmark = pytest.mark.filterwarnings("ignore")

COMPOSITE = "CompositeImplicitAutograd"


def asks(op: OpOverload) -> bool:
    """Does a replay run it in grad mode, on inputs that require grad as they did?"""
    name, _, overload = op.name().partition(".")
    return recals._C.asks_for_grad(name, overload)


def is_composite(op: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), COMPOSITE)


def differences(op: OpOverload) -> set[str] | None:
    """What differs with and without gradients; None if no call of it is known."""
    calls = ops.calls_of(op)
    return set().union(*map(ops.differences, calls)) if calls else None


def by_name() -> dict[str, OpOverload]:
    return {ops.name_of(op): op for op in ops.functional_ops()}


@pytest.mark.parametrize("name", ops.ASKING)
def test_ops_that_are_known_to_differ_do_and_ask(name: str) -> None:
    op = by_name()[name]
    assert differences(op)
    assert asks(op)


def test_ops_of_others_ask() -> None:
    assert recals._C.asks_for_grad("somebody::op", "")


def test_composite_ops_that_do_not_ask_are_called_and_do_not_differ() -> None:
    quiet = [op for op in ops.functional_ops() if is_composite(op) and not asks(op)]
    assert len(quiet) > 30
    assert {op.name(): differences(op) for op in quiet} == {op.name(): set() for op in quiet}


@pytest.mark.slow
def test_every_op_that_differs_asks() -> None:
    found = {ops.name_of(op): differences(op) for op in ops.functional_ops()}
    assert sum(what is not None for what in found.values()) > 700
    differing = {name for name, what in found.items() if what}
    assert differing >= set(ops.ASKING)
    asking = {ops.name_of(op) for op in ops.functional_ops() if asks(op)}
    assert sorted(differing - asking) == []
    own = {ops.name_of(op) for op in ops.functional_ops() if not is_composite(op)}
    assert asking & own == (differing & own) | set(ops.ASK_ELSEWHERE)
