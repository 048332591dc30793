"""What Recals raises. Errors inside a training step come from TorchScript as RuntimeError; their text starts with
``recals:`` as these do."""

from __future__ import annotations


class RecalsError(RuntimeError):
    """The module, or the inputs, are not of a form that Recals takes; the message names the node and its line."""


class BudgetError(RecalsError, ValueError):
    """No plan fits the budget.

    Attributes:
        smallest: device name -> the smallest budget in bytes that works, all devices together.
    """

    def __init__(self, message: str, smallest: dict[str, int]) -> None:
        super().__init__(message)
        self.smallest = smallest
