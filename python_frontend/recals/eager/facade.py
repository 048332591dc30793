"""Eager modules that train within a budget, compiled in place."""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeVar

import torch
from torch import nn

from recals._errors import BudgetWarning, RecalsError
from recals.eager import dynamo
from recals.eager.sessions import Call, Session, compiled_call
from recals.eager.settings import Settings
from recals.loss import Loss

M = TypeVar("M", bound=nn.Module)


def disabled() -> bool:
    """Whether RECALS_DISABLE switches everything off."""
    return os.environ.get("RECALS_DISABLE", "") not in ("", "0")


class _Call:
    """What `Module.__call__` calls. Without gradients the model runs as it is."""

    def __init__(self, model: nn.Module, session: Session) -> None:
        self.session = session
        self._model = model
        self._compiled = compiled_call(model, session)
        # torch.compile around the model calls it as it is.
        self._apart = torch.compiler.disable(self._run)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._apart(*arguments, **keywords)

    def _run(self, *arguments: Any, **keywords: Any) -> Any:
        plain = self._model._call_impl
        if not torch.is_grad_enabled() or disabled():
            return plain(*arguments, **keywords)
        if dynamo.hooks_have_saved_tensors():
            self.session.cannot_plan(
                "is called inside of hooks on saved tensors (torch.utils.checkpoint around it, save_on_cpu), which "
                "have what a plan would drop"
            )
            return plain(*arguments, **keywords)
        return self.session.run(self._compiled, plain, arguments, keywords)

    def look(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """Plans for such a call."""
        return self.session.look(self._compiled, arguments, keywords)


def session_of(model: nn.Module) -> Session | None:
    """Of a model that `optimize_in_place` has made."""
    call = vars(model).get("_compiled_call_impl")
    return call.session if isinstance(call, _Call) else None


def planned_step(
    model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[torch._C.ScriptModule, tuple[Any, ...], Loss | None] | None:
    """The step of such a call under its plan, as `captured_step` gives a plain one; None if there is no plan."""
    call = vars(model).get("_compiled_call_impl")
    found = call.look(arguments, keywords).found if isinstance(call, _Call) and not disabled() else None
    if found is None:
        return None
    step, given = found
    return step.module, step.captured.inputs(given), step.captured.loss(given)


def optimize_in_place(
    model: M, arguments: tuple[Any, ...] | None, keywords: dict[str, Any] | None, settings: Settings
) -> M:
    """`model` itself, whose training calls stay within the budget; planned at once if it is given arguments."""
    settings.check()
    if disabled():
        return model
    before = vars(model).get("_compiled_call_impl")
    if before is not None and not isinstance(before, _Call):
        warnings.warn(
            f"recals: {type(model).__name__} was compiled in place before (Module.compile), which its budget now "
            f"replaces",
            BudgetWarning,
            stacklevel=3,
        )
    call = _Call(model, Session(settings, type(model).__name__))
    if arguments is not None or keywords is not None:
        call.look(arguments or (), keywords or {})
    model._compiled_call_impl = call
    return model


def restore_in_place(model: M) -> M:
    """`model` itself, plain again. Raises RecalsError if it has no budget, unless RECALS_DISABLE is why."""
    if session_of(model) is not None:
        model._compiled_call_impl = None
    elif not disabled():
        raise RecalsError(f"recals: this {type(model).__name__} has no budget: there is nothing to restore")
    return model
