"""The numbers among a graph's inputs and outputs: sizes that differ between calls, counters of steps.

A plan is made for the numbers that tensor ops read. Others, and what is only computed of numbers, differ freely.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx


class Numbers:
    """Of a graph, as a first call with `arguments` shows them."""

    def __init__(self, graph_module: fx.GraphModule, arguments: tuple[Any, ...]) -> None:
        nodes = list(graph_module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        numbers = {node for node, value in zip(inputs, arguments, strict=True) if not isinstance(value, Tensor)}
        for node in nodes:
            sources = node.all_input_nodes
            if node.op == "call_function" and _arithmetic(node) and sources and numbers.issuperset(sources):
                numbers.add(node)
        (output,) = [node for node in nodes if node.op == "output"]
        read = _sources(
            [other for node in nodes if node not in numbers and node is not output for other in node.all_input_nodes]
        )
        self.read = [place for place, node in enumerate(inputs) if node not in numbers or node in read]
        """The inputs that tensor ops read, tensors and numbers, by number."""
        leaves: Any = output.args[0]
        self._outputs = [place for place, leaf in enumerate(leaves) if isinstance(leaf, fx.Node) and leaf in numbers]
        self._graph = _only(graph_module, numbers, inputs, [leaves[place] for place in self._outputs])

    def put(self, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The graph's outputs, with the numbers of this call where numbers are."""
        if not self._outputs:
            return results
        outputs = list(results)
        values = fx.Interpreter(self._graph).run(*arguments)
        for place, value in zip(self._outputs, values, strict=True):
            outputs[place] = value
        return tuple(outputs)


def _arithmetic(node: fx.Node) -> bool:
    name, module = getattr(node.target, "__name__", ""), getattr(node.target, "__module__", "")
    return module in ("_operator", "math") or name.startswith(("sym_", "_sym_"))


def _sources(nodes: list[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _only(
    graph_module: fx.GraphModule, numbers: set[fx.Node], inputs: list[fx.Node], results: list[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node in inputs or node in numbers:
            values[node] = graph.node_copy(node, lambda argument: values[argument])
    graph.output(tuple(values[node] for node in results))
    return fx.GraphModule(graph_module, graph)
