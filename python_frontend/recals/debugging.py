"""Checks that cost time."""

from __future__ import annotations

from types import TracebackType

from recals._load import _C


class debug:  # a function to its callers, and a context manager to those who want one
    """Looks for tensors that were overwritten behind autograd's back between a forward and its backward.

    A replay reads what the forward read: inputs, parameters, buffers, checkpoints. Who writes into one of them through
    ``.data``, ``numpy()`` or a raw pointer, which no version counter sees, changes gradients without a word, and other
    ones than in the plain module. While this is on, each forward takes a checksum of what it holds, and a replay that
    finds another one is an error that names the tensor and the op. It reads every held tensor twice, so leave it off
    where time matters.

        recals.debug()  # from now on
        recals.debug(False)  # no more
        with recals.debug():  # inside
            train_step()
    """

    def __init__(self, on: bool = True) -> None:
        self._before = bool(_C.debugging())
        _C.set_debugging(bool(on))

    def __enter__(self) -> debug:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_debugging(self._before)
