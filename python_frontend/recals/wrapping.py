"""Rewritten modules as Python sees them."""

from __future__ import annotations

import types

import torch
from torch.jit._recursive import wrap_cpp_module


def wrap(rewritten: torch._C.ScriptModule, source: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """`rewritten` with the Python side of `source`, the module that it was made from.

    The submodules are the same to TorchScript, so their wrappers may be the same, too: those that `torch.jit.script`
    made can do more (`model.layers[0]`, `len(model.layers)`) than any that are made of a TorchScript object alone.
    """
    wrapped: torch.jit.ScriptModule = wrap_cpp_module(rewritten)
    for name, submodule in source._modules.items():
        wrapped._modules[name] = submodule
    for name, value in vars(source).items():
        if name in vars(wrapped) or isinstance(value, torch._C.ScriptMethod | property):
            continue  # what every wrapper has, and what is compiled: the rewritten module has its own
        if isinstance(value, types.MethodType) and value.__self__ is source:
            value = types.MethodType(value.__func__, wrapped)
        vars(wrapped)[name] = value
    return wrapped
