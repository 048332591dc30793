"""A loss= is traced by dynamo with the model, behind a mark, and taken out of the graph again: it is counted, not
run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from recals.eager import dynamo
from recals.loss import Loss


def recals_loss(value: Any) -> Any:
    """The mark: the value of the loss, in a graph of dynamo."""
    return value


def traced_call(model: nn.Module, loss: Loss | None) -> Callable[..., Any]:
    """What dynamo is to trace of a call of `model`: its result, and with a loss, that behind the mark, too."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return model._call_impl(*arguments, **keywords)

    def call_with_loss(*arguments: Any, **keywords: Any) -> Any:
        result = model._call_impl(*arguments, **keywords)
        return result, recals_loss(loss(result))  # type: ignore[misc]

    if loss is None:
        return dynamo.fresh(call)
    torch._dynamo.allow_in_graph(recals_loss)
    return dynamo.fresh(call_with_loss)


@dataclass
class LossPart:
    """The loss as a graph of its own."""

    graph: fx.GraphModule
    outputs: list[int]
    """Its first inputs: outputs of the model's graph, by number."""
    inputs: list[int]
    """The others: inputs of the model's graph, by number."""

    def of(self, arguments: tuple[Any, ...], results: Callable[[int], int]) -> Callable[[Any], Tensor]:
        """The loss as a function of the results of a captured graph, for the inputs of a call. `results`: from the
        number of an output of the graph to that of the result."""
        places = [results(number) for number in self.outputs]
        others = [arguments[number] for number in self.inputs]

        def loss(values: Any) -> Tensor:
            value: Tensor = fx.Interpreter(self.graph).run(*(values[place] for place in places), *others)
            return value

        return loss


def _needed(roots: list[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    todo = [node for node in roots if node not in stop]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [other for other in node.all_input_nodes if other not in stop]
    return found


def _flat(output: fx.Node) -> list[Any]:
    returned: Any = output.args[0]
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def split_loss(graph_module: fx.GraphModule) -> tuple[fx.GraphModule, LossPart | None]:
    """The graph without what only the mark needs, which gives None in the mark's place; and the loss, if any."""
    marks = [node for node in graph_module.graph.nodes if node.target is recals_loss]
    if not marks:
        return graph_module, None
    (mark,) = marks
    (output,) = [node for node in graph_module.graph.nodes if node.op == "output"]
    leaves = _flat(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, fx.Node) and leaf is not mark]
    outputs = set(tensors)
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    kept = _needed(tensors, set())
    only_loss = _needed([mark], kept) - set(inputs)
    frontier = {other for node in only_loss for other in node.all_input_nodes} - only_loss
    inside = [node for node in frontier if node not in outputs and node.op not in ("placeholder", "get_attr")]
    part = None if inside else _loss_graph(graph_module, mark, only_loss, frontier, leaves, inputs)
    return _without(graph_module, only_loss, mark), part


def _loss_graph(
    graph_module: fx.GraphModule,
    mark: fx.Node,
    only_loss: set[fx.Node],
    frontier: set[fx.Node],
    leaves: list[Any],
    inputs: list[fx.Node],
) -> LossPart:
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    outputs = [node for node in frontier if node in leaves]
    read = [node for node in inputs if node in frontier and node not in outputs]
    for node in [*outputs, *read]:
        values[node] = graph.placeholder(node.name)
    for node in graph_module.graph.nodes:
        if node in frontier and node.op == "get_attr" and node not in values:
            values[node] = graph.node_copy(node)
        elif node is mark:
            argument = node.args[0]
            assert isinstance(argument, fx.Node)
            graph.output(values[argument])
        elif node in only_loss:
            values[node] = graph.node_copy(node, lambda argument: values[argument])
    return LossPart(
        fx.GraphModule(graph_module, graph),
        [leaves.index(node) for node in outputs],
        [inputs.index(node) for node in read],
    )


def _without(graph_module: fx.GraphModule, only_loss: set[fx.Node], mark: fx.Node) -> fx.GraphModule:
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node.op == "output":
            leaves = [
                None if leaf is mark else values[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in _flat(node)
            ]
            graph.output(tuple(leaves))
        elif node not in only_loss:
            values[node] = graph.node_copy(node, lambda argument: values[argument])
    return fx.GraphModule(graph_module, graph)
