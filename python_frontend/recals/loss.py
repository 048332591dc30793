"""A loss outside of the module, called in the analysis: on tensors without data, whose bytes are counted."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

Loss: TypeAlias = Callable[[Any], Tensor]
"""What is computed of the module's result: takes what a call returns, returns a tensor of one element."""

_READS: frozenset[Any] = frozenset(
    getattr(Tensor, name)
    for name in ("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__")
)
"""What asks for numbers. The caller's own tensors have some, what is computed of them here has none."""


class _WithoutData(TorchFunctionMode):
    """The caller's tensors (targets, weights of classes) and devices give way to those that stand for them on meta."""

    def __init__(self, stand_in: Callable[[Any], Any]) -> None:
        super().__init__()
        self._stand_in = stand_in

    def _replaced(self, value: Any) -> Any:
        return self._stand_in(value) if isinstance(value, Tensor | torch.device) else value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _READS:
            return func(*args, **kwargs)
        if isinstance(kwargs.get("device"), str):
            kwargs["device"] = torch.device(kwargs["device"])
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], str):
            args = (args[0], torch.device(args[1]), *args[2:])
        return func(*tree_map(self._replaced, args), **tree_map(self._replaced, kwargs))


def _place(error: Exception) -> str:
    """Where in the caller's code: the last line that is neither torch's nor this file's."""
    ours = (__file__, torch.__path__[0])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""


def loss_for_analysis(loss: Loss) -> Callable[[Any, Callable[[Any], Any]], Tensor | str]:
    """As the extension calls it: a tensor, or in words why there is none. Raises TypeError if `loss` is no function."""
    if not callable(loss):
        raise TypeError(f"recals: loss is a function of what the module returns, not {loss!r} ({type(loss).__name__})")

    def call(result: Any, stand_in: Callable[[Any], Any]) -> Tensor | str:
        try:
            with _WithoutData(stand_in):
                value = loss(result)
        except Exception as error:  # of any kind: it is the caller's code
            return (
                f"recals: the function loss= failed{_place(error)}: {type(error).__name__}: {error}. It is called "
                "without data, to count bytes, so it must not read numbers out of the module's result (item(), if, "
                "print, numpy()), nor out of what it computes: compute such numbers outside of it"
            )
        if not isinstance(value, Tensor):
            return f"recals: loss= must return a tensor of one element, not {type(value).__name__}"
        return value

    return call
