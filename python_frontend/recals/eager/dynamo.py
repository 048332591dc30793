"""What is asked of torch's dynamo, and how it is asked on each version of torch."""

from __future__ import annotations

import re
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from recals.eager.places import place_in

_WANTED: dict[str, Any] = {
    "allow_rnn": True,  # torch.nn.LSTM and its like are ops of ATen
    "allow_unspec_int_on_nn_module": True,  # a counter of steps is not compiled anew in each of them
    "skip_nnmodule_hook_guards": False,  # a hook that is registered later is called
    "specialize_float": True,  # else a drop rate that changes becomes a tensor
    "optimize_ddp": False,  # DDP's buckets would cut the graph
    "recompile_limit": 256,  # past it, torch runs plain without a word
    "accumulated_recompile_limit": 4096,
    "fail_on_recompile_limit_hit": True,
    "suppress_errors": False,
}


class _Settings:
    """dynamo's configuration while models are called here.

    It is the process's, and calls of several threads overlap: the first one sets it, and the last one sets it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._patch: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._calls == 0:
                config = torch._dynamo.config
                self._patch = config.patch({name: _WANTED[name] for name in _WANTED if hasattr(config, name)})
                self._patch.__enter__()
            self._calls += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                patch, self._patch = self._patch, None
                patch.__exit__(None, None, None)


_SETTINGS = _Settings()


def settings() -> _Settings:
    """How models are compiled here: limits are higher than torch's, and reaching one is an error."""
    return _SETTINGS


_FRAME = re.compile(
    r'frame skipped: \S+ \((?P<file>[^\s)]+) line (?P<line>\d+)\)|File "(?P<where>[^"]+)", line (?P<at>\d+)'
)


def _counted() -> dict[str, int]:
    """How often dynamo has stopped, by reason. Older versions count under one name, newer ones under two."""
    counters = torch._dynamo.utils.counters
    return {**counters["graph_break"], **counters["unimplemented"]}


class Reasons:
    """What dynamo could not capture since this was made, in words with their lines."""

    def __init__(self) -> None:
        self._before = _counted()

    def new(self) -> list[str]:
        reasons = []
        for text, count in _counted().items():
            if count > self._before.get(text, 0):
                found = _FRAME.search(text)
                frame = found and (found["file"] or found["where"], int(found["line"] or found["at"]))
                reasons.append(text.strip().splitlines()[0] + (str(place_in([frame])) if frame else ""))
        return list(dict.fromkeys(reasons))


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with code of its own: dynamo counts what it has compiled by the code, and compares backends there."""
    assert isinstance(function, types.FunctionType)
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def hooks_have_saved_tensors() -> bool:
    """Whether somebody's hooks (torch.utils.checkpoint, save_on_cpu) get what autograd saves in this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def reached_its_limit(error: BaseException) -> bool:
    """Whether dynamo has compiled as often as it may."""
    return type(error).__name__ in ("FailOnRecompileLimitHit", "RecompileLimitExceeded")


def is_dynamos_own(error: BaseException) -> bool:
    """Whether dynamo itself failed, rather than the user's code in it."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
