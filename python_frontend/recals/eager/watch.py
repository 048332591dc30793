"""Results of a step that were planned without a gradient are watched for one.

Gradients are right in any case; but one that was not counted is a buffer that the budget knows nothing of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from recals._load import _C
from recals.eager.importer import Imported


class Watch:
    """Calls `on_gradient` when a result that is not among `reached` gets a gradient from outside of the graph."""

    def __init__(self, parts: Imported, reached: set[int], on_gradient: Callable[[], None]) -> None:
        unreached = {number for number in parts.differentiable if number not in reached}
        self._inside = sorted(unreached & parts.behind(reached))  # get a gradient inside the graph, too
        self._outside = sorted(unreached - set(self._inside))
        self._reached = sorted(reached)
        self._on_gradient = on_gradient

    def __call__(self, results: Any) -> None:
        for number in self._outside:
            if results[number].requires_grad:
                results[number].register_hook(self._came)
        inside = [results[number] for number in self._inside if results[number].grad_fn is not None]
        if inside:
            self._watch_inside(results, inside)

    def _came(self, gradient: Tensor) -> None:
        self._on_gradient()

    def _watch_inside(self, results: Any, inside: list[Tensor]) -> None:
        consumers = [_C.Consumers(result) for result in inside]
        loss_came = False

        def loss(gradient: Tensor) -> None:
            nonlocal loss_came
            loss_came = True
            # The backward has come as far as the loss, so what else of it reaches these results has been built.
            if any(consumer.since() for consumer in consumers):
                self._on_gradient()

        def result(gradient: Tensor) -> None:
            if not loss_came:
                self._on_gradient()

        for number in self._reached:
            results[number].register_hook(loss)
        for tensor in inside:
            tensor.register_hook(result)
