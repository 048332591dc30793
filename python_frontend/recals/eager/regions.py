"""What dynamo leaves as a region of its own and is planned over as if it were not there.

`torch.utils.checkpoint` inside a model keeps its input and runs its body again in the backward. The bits are those of
the body alone, so the body takes its place, and the plan decides what is kept. An `autocast(enabled=False)` where
nothing is cast changes nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

_ENTER, _EXIT = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast


def _is_checkpoint(node: fx.Node) -> bool:
    """With preserve_rng_state=False the backward draws other numbers than the forward, which is left to torch."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() == "tag_activation_checkpoint"
        and node.kwargs.get("preserve_rng_state", True) is not False
    )


def _inline(root: fx.GraphModule, graph: fx.Graph, node: fx.Node) -> None:
    body_name, *arguments = node.args
    assert isinstance(body_name, fx.Node)
    body: fx.GraphModule = root.get_submodule(str(body_name.target))
    inputs = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
    values: dict[fx.Node, Any] = dict(zip(inputs, arguments, strict=True))
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "get_attr":
                values[inner] = graph.get_attr(f"{body_name.target}.{inner.target}")
    results: Any = ()
    with graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "output":
                results = fx.map_arg(inner.args[0], lambda argument: values[argument])
            elif inner not in values:
                values[inner] = graph.node_copy(inner, lambda argument: values[argument])
    for user in list(node.users):
        # Results are read by number only.
        user.replace_all_uses_with(results[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _casts(device: str) -> bool:
    return bool(torch.is_autocast_enabled(device))


def _remove_idle_autocasts(graph: fx.Graph) -> None:
    """Those that switch off, under the autocast state of this thread, what is off."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is _ENTER:
            device, _, enabled, *_ = node.args
            if enabled is False and not _casts(str(device)):
                for user in list(node.users):
                    graph.erase_node(user)
                graph.erase_node(node)


def _copy(graph_module: fx.GraphModule) -> fx.Graph:
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    return graph


def without_checkpoints(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A graph of dynamo with the bodies of checkpoints in their place; `graph_module` itself stays as it is."""
    if not any(_is_checkpoint(node) for node in graph_module.graph.nodes):
        return graph_module
    graph = _copy(graph_module)
    found = True
    while found:
        found = False
        for node in list(graph.nodes):
            if _is_checkpoint(node):
                _inline(graph_module, graph, node)
                found = True
    graph.lint()
    return fx.GraphModule(graph_module, graph)


def without_idle_autocasts(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A graph of dynamo without what casts nothing under the autocast state of this thread."""
    if not any(node.target is _ENTER for node in graph_module.graph.nodes):
        return graph_module
    graph = _copy(graph_module)
    _remove_idle_autocasts(graph)
    graph.lint()
    return fx.GraphModule(graph_module, graph)
