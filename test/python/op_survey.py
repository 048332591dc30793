"""Torch's own list of ops with arguments for each, as modules that can be trained."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

SAMPLES = 2
"""Of the arguments that torch has for an op, the first so many."""


class Step(nn.Module):
    """The op on its arguments. Those that require a gradient are parameters, times an input that is one."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op = op
        leaves, self.structure = pytree.tree_flatten((sample.input, sample.args, dict(sample.kwargs)))
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.names = [f"leaf{number}" if isinstance(leaf, Tensor) else "" for number, leaf in enumerate(leaves)]
        for name, leaf in zip(self.names, leaves, strict=True):
            if name and leaf.requires_grad:
                self.register_parameter(name, nn.Parameter(leaf.detach().clone()))
            elif name:
                self.register_buffer(name, leaf.detach().clone())

    def forward(self, one: Tensor) -> Tensor | tuple[Tensor, ...]:
        values = [
            self.argument(name, one) if name else leaf for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        first, args, kwargs = pytree.tree_unflatten(values, self.structure)
        results = pytree.tree_leaves(self.op(first, *args, **kwargs))
        trained = tuple(r for r in results if isinstance(r, Tensor) and r.requires_grad and r.numel() > 0)
        return trained[0] if len(trained) == 1 else trained

    def argument(self, name: str, one: Tensor) -> Tensor:
        value: Tensor = getattr(self, name)
        return value * one if isinstance(value, nn.Parameter) else value


def loss(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    """A number that depends on every element, on no two of them alike."""
    total = torch.zeros(())
    for one in output if isinstance(output, tuple) else (output,):
        real = torch.view_as_real(one) if one.is_complex() else one
        total = total + (real * torch.linspace(0.5, 1.5, real.numel(), dtype=real.dtype).reshape(real.shape)).sum()
    return total


def trained(module: nn.Module) -> list[Tensor]:
    """A step: the results and the gradients of all parameters. Raises what the module raises."""
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.manual_seed(3)
    output = module(torch.ones(()))
    loss(output).backward()
    outputs = output if isinstance(output, tuple) else (output,)
    left = [*(one.detach() for one in outputs), *(parameter.grad for parameter in module.parameters())]
    if any(one.layout != torch.strided for one in left):
        raise ValueError("sparse tensors, whose bits are elsewhere")
    return [one.resolve_conj().resolve_neg().clone() for one in left]


def infos() -> list[Any]:
    """What torch's own tests know of each op. Its module wants a package that only its base class of tests needs."""
    if "expecttest" not in sys.modules:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [info for info in op_db if info.supports_autograd and torch.float32 in info.dtypes]


def name_of(info: Any) -> str:
    """ "max.reduction_no_dim"."""
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


def steps(info: Any) -> Iterator[tuple[nn.Module, torch.jit.ScriptModule]]:
    """Eager and traced modules of the op that share their parameters, for those samples of which torch itself can train
    both to the same bits."""
    torch.manual_seed(0)
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=True)
    for _, sample in zip(range(SAMPLES), samples, strict=False):
        module = Step(info.op, sample)
        try:
            eager = trained(module)
            trace = torch.jit.trace(module, (torch.ones(()),), check_trace=False)
            again, traced = trained(module), trained(trace)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            continue
        if same(eager, again) and same(eager, traced):
            yield module, trace


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True)
    )
