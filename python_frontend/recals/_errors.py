"""What Recals raises, and warns of. Errors inside a training step come from TorchScript as RuntimeError; their text
starts with ``recals:`` as these do."""

from __future__ import annotations


class RecalsError(RuntimeError):
    """The module, or the inputs, are not of a form that Recals takes; the message names the node and its line."""


class BudgetError(RecalsError, ValueError):
    """No plan fits the budget.

    Attributes:
        smallest: device name -> the smallest budget in bytes that works, all devices together.
        smallest_without_pins: the same if no pin had to be followed; equal to `smallest` where none says must.
    """

    def __init__(self, message: str, smallest: dict[str, int], smallest_without_pins: dict[str, int]) -> None:
        super().__init__(message)
        self.smallest = smallest
        self.smallest_without_pins = smallest_without_pins


class CaptureWarning(UserWarning):
    """A scripted or traced module does something else than the Python module that it was made from; the message says
    what."""


class BudgetWarning(UserWarning):
    """A step may hold, or holds, more than its budget, though its gradients are right; the message says why.

    ``warnings.simplefilter("error", recals.BudgetWarning)`` makes it an error. Inside a scripted forward, TorchScript
    turns that into a RuntimeError with the same text.
    """
