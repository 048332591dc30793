"""A graph of dynamo as ATen ops before autograd, for the inputs of one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def aten_of(graph_module: fx.GraphModule, arguments: tuple[Any, ...]) -> tuple[fx.GraphModule, list[bool]]:
    """`graph_module` traced on tensors without data, shaped as those of `arguments`; numbers are taken as they are.

    Its placeholders are the tensors of `arguments`, in order. Traced above autograd and autocast, so that its ops are
    those that the eager module calls. Each node has the meta of the one that it comes from, and its result's under
    "val". Random states stay. The second result tells which outputs need a gradient.
    """
    differentiable: list[bool] = []
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(value, static_shapes=True) for value in arguments if isinstance(value, Tensor)]

    def call(*tensors: Tensor) -> Any:
        left = iter(tensors)
        values = [next(left) if isinstance(value, Tensor) else value for value in arguments]
        results = fx.Interpreter(graph_module).run(*values)
        differentiable.extend(isinstance(result, Tensor) and result.requires_grad for result in results)
        return results

    # With nobody's hooks on saved tensors: what is saved here has no data.
    with (
        mode,
        torch.fx.traceback.preserve_node_meta(),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda nothing: None),
    ):
        traced = make_fx(call, pre_dispatch=True, tracing_mode="real", _allow_non_fake_inputs=False)(*fakes)
    return traced, differentiable
