"""What users are told of an eager module, once each."""

from __future__ import annotations

import warnings

from recals._errors import BudgetWarning, RecalsError
from recals.arguments import OnMismatch


class Once:
    """Says each thing once."""

    def __init__(self, subject: str, on_mismatch: OnMismatch) -> None:
        """`subject`: what cannot be planned where something cannot."""
        self.said: set[str] = set()
        self._subject = subject
        self._on_mismatch = on_mismatch

    def warn(self, key: str, text: str, kind: type[Warning] = BudgetWarning) -> None:
        """`text`, unless something was said under the same `key`."""
        if key not in self.said:
            self.said.add(key)
            warnings.warn(text, kind, stacklevel=2)

    def cannot_plan(self, text: str) -> None:
        """The subject will run plain, because it `text`: warns, raises RecalsError, or says nothing (`on_mismatch`)."""
        text = f"recals: {self._subject} is not planned, and so runs plain, outside of the budget: it {text}"
        if self._on_mismatch == "error":
            raise RecalsError(text)
        if self._on_mismatch == "warn":
            self.warn(text, text)
