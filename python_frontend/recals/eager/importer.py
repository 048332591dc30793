"""ATen graphs of FX as graphs of TorchScript, which the passes take.

Everything that a graph reads is an input of it, parameters and buffers too: dynamo shares one graph between the
instances of a class. `torch.no_grad()` becomes a detach of every tensor that enters the region.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from recals._errors import RecalsError
from recals._load import _C
from recals.eager.places import module_of, place_of

_TENSOR = torch._C.TensorType.get()
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}

_ABOUT_SHAPES = ("aten::_assert_tensor_metadata", "aten::sym_constrain_range", "aten::_assert_scalar")
"""Checks of what a signature has already fixed."""

_TAKES_BOOL_AS_NUMBER = ("aten::fill", "aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::eq", "aten::ne")


class ImportRefused(RecalsError):
    """The graph has something in it that the passes do not take; the message names it and its line."""


@dataclass
class Imported:
    """A graph of TorchScript and how it is called."""

    graph: torch._C.Graph
    constants: list[Tensor]
    """Come after the tensors of the call, as its last inputs."""
    results: list[int | None]
    """For every output of the FX graph: its place among the graph's results; None where it is none of its tensors."""
    others: list[Any]
    """For every output of the FX graph that is no result: the number of an input, or a constant."""
    differentiable: list[int] = field(default_factory=list)
    """The results that need a gradient."""
    scalars: list[int] = field(default_factory=list)
    """Those of them that are a single floating number."""
    nodes: list[fx.Node] = field(default_factory=list)
    """Of the FX graph, for every result."""

    def behind(self, results: Iterable[int]) -> set[int]:
        """The results that some other of `results` is computed from."""
        found: set[fx.Node] = set()
        todo = [source for number in results for source in self.nodes[number].all_input_nodes]
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += node.all_input_nodes
        return {number for number, node in enumerate(self.nodes) if node in found}


@dataclass(frozen=True)
class Input:
    """An output that is an input of the graph, by number."""

    number: int


def _number(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex)


class _Importer:
    def __init__(self, graph_module: fx.GraphModule, differentiable: list[bool]) -> None:
        self.module = graph_module
        self.differentiable = differentiable
        self.graph = torch._C.Graph()
        self.values: dict[fx.Node, Any] = {}  # a value of the graph, or a list of them
        self.constants: list[Tensor] = []
        self.grad = True
        self.detached: dict[Any, Any] = {}  # of this no_grad region

    def refuse(self, node: fx.Node, why: str) -> ImportRefused:
        return ImportRefused(f"{node.target}{place_of(node)} {why}")

    # --- nodes --------------------------------------------------------------------------------------------------------

    def run(self) -> Imported:
        nodes = list(self.module.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.values[node] = self._input()
        for node in nodes:
            if node.op == "get_attr":
                self._constant(node)
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
        return self._outputs(nodes)

    def _input(self) -> Any:
        value = self.graph.addInput()
        value.setType(_TENSOR)
        return value

    def _constant(self, node: fx.Node) -> None:
        value: Any = self.module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if not isinstance(value, Tensor) or type(value) is not Tensor:
            raise self.refuse(node, f"is a {type(value).__name__} that the trace took for a constant")
        self.values[node] = self._input()
        self.constants.append(value)

    def _call(self, node: fx.Node) -> None:
        target = node.target
        if target is torch._C._set_grad_enabled:
            self.grad = bool(node.args[0])
            self.detached = {}
        elif target is operator.getitem:
            source, number = node.args
            assert isinstance(source, fx.Node)
            self.values[node] = self.values[source][number]
        elif isinstance(target, torch._ops.OpOverload):
            if target._schema.name not in _ABOUT_SHAPES:
                self._op(node, target)
        else:
            raise self.refuse(node, "is no op of the dispatcher")

    def _op(self, node: fx.Node, target: torch._ops.OpOverload) -> None:
        schema = target._schema
        arguments, numbers = [], set()
        for number, argument in enumerate(schema.arguments):
            given = self._given(node, argument, number)
            kind = argument.real_type
            if kind.kind() == "TensorType" and _number(given):
                numbers.add(number)
            arguments.append(self._argument(node, given, kind))
        if not self.grad:
            arguments = [self._detach(value) for value in arguments]
        if not schema.returns:
            raise self.refuse(node, "returns nothing")
        op = self.graph.create(schema.name, arguments, len(schema.returns))
        for output, returned in zip(op.outputs(), schema.returns, strict=True):
            output.setType(returned.type)
        self.graph.insertNode(op)
        self._place(op, node)
        self._check_overload(node, target, op, numbers)
        self.values[node] = self._results(node, schema, op)

    def _given(self, node: fx.Node, argument: Any, number: int) -> Any:
        if not argument.kwarg_only and number < len(node.args):
            return node.args[number]
        if argument.name in node.kwargs:
            return node.kwargs[argument.name]
        if argument.has_default_value():
            return argument.default_value
        raise self.refuse(node, f"is called without its argument {argument.name}")

    def _results(self, node: fx.Node, schema: Any, op: Any) -> Any:
        results = []
        for output, returned in zip(op.outputs(), schema.returns, strict=True):
            kind = returned.type.kind()
            if kind == "TensorType":
                results.append(output)
            elif kind == "ListType" and returned.type.getElementType().kind() == "TensorType":
                value = node.meta["val"]
                count = len(value if len(schema.returns) == 1 else value[len(results)])
                unpack = self.graph.create("prim::ListUnpack", [output], count)
                self.graph.insertNode(unpack)
                for element in unpack.outputs():
                    element.setType(_TENSOR)
                results.append(list(unpack.outputs()))
            else:
                raise self.refuse(node, "reads a number out of a tensor")
        if len(results) != 1:
            return results
        if not self.grad and isinstance(node.args[0] if node.args else None, fx.Node):
            first = schema.arguments[0]
            if first.alias_info is not None and first.alias_info.is_write:
                # Written in place under no_grad: what is returned is the tensor itself, as autograd knows it.
                return self.values[node.args[0]]
        return results[0]

    def _place(self, op: Any, node: fx.Node) -> None:
        place = place_of(node)
        _C.place(op, module_of(node), place.file, place.line, place.text)

    def _check_overload(self, node: fx.Node, target: Any, op: Any, numbers: set[int]) -> None:
        """TorchScript chooses the overload by the arguments. Where Python's number stands for a tensor it is the one
        that takes a number; nothing else may differ."""
        found = str(op.schema())
        name = target._schema.name
        if not found.startswith((name + ".", name + "(")):
            raise self.refuse(node, "is an op that TorchScript does not have for these arguments")
        overload = found[len(name) :].split("(")[0].lstrip(".")
        if overload == target._schema.overload_name:
            return
        other = getattr(target._overloadpacket, overload or "default")._schema
        wanted = target._schema.arguments
        same = len(other.arguments) == len(wanted) and all(
            a.name == b.name and (str(a.type) == str(b.type) or (number in numbers and b.type.kind() == "NumberType"))
            for number, (a, b) in enumerate(zip(wanted, other.arguments, strict=True))
        )
        if not same:
            raise self.refuse(node, f"would become {name}.{overload} in TorchScript, which is another op")

    # --- arguments ----------------------------------------------------------------------------------------------------

    def _argument(self, node: fx.Node, given: Any, kind: Any) -> Any:
        """`given` as a value of the graph, where the schema says `kind`."""
        if isinstance(given, fx.Node):
            value = self.values[given]
            return self._list(kind, value) if isinstance(value, list) else value
        if kind.kind() == "OptionalType":
            if given is None:
                return self._none()
            kind = kind.getElementType()
        if kind.kind() == "ListType":
            if given is None:
                return self._none()
            element = kind.getElementType()
            items = given if isinstance(given, list | tuple) else [given]
            return self._list(kind, [self._argument(node, item, element) for item in items])
        return self._scalar(node, given, kind)

    def _scalar(self, node: fx.Node, given: Any, kind: Any) -> Any:
        if given is None:
            return self._none()
        if isinstance(given, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise self.refuse(node, f"takes {given}, a number that is not known from the shapes")
        if isinstance(given, torch.Generator):
            raise self.refuse(node, "draws from a generator of its own")
        if isinstance(given, torch.memory_format):
            given = _MEMORY_FORMATS[given]
        if kind.kind() == "FloatType":
            given = float(given)
        if isinstance(given, bool) and kind.kind() in ("IntType", "SymIntType"):
            given = int(given)
        if isinstance(given, bool) and kind.kind() in ("NumberType", "TensorType"):
            if str(node.target._schema.name) not in _TAKES_BOOL_AS_NUMBER:
                raise self.refuse(node, f"takes {given} for a number")
            given = int(given)
        try:
            return self.graph.insertConstant(given)
        except TypeError:
            raise self.refuse(node, f"takes a {type(given).__name__}") from None

    def _none(self) -> Any:
        node = self.graph.create("prim::Constant", [], 1)
        node.output().setType(torch._C.NoneType.get())
        self.graph.insertNode(node)
        return node.output()

    def _list(self, kind: Any, values: list[Any]) -> Any:
        element = kind.getElementType() if kind.kind() == "ListType" else _TENSOR
        if element.kind() == "SymIntType":
            element = torch._C.IntType.get()
        node = self.graph.create("prim::ListConstruct", values, 1)
        node.output().setType(torch._C.ListType(element))
        self.graph.insertNode(node)
        return node.output()

    def _detach(self, value: Any) -> Any:
        if value.type().kind() == "ListType" and value.node().kind() == "prim::ListConstruct":
            if value.type().getElementType().kind() in ("IntType", "FloatType", "BoolType"):
                return value
            return self._list(value.type(), [self._detach(element) for element in value.node().inputs()])
        if value.type().kind() != "TensorType":
            return value
        if value not in self.detached:
            node = self.graph.create("aten::detach", [value], 1)
            node.output().setType(_TENSOR)
            self.graph.insertNode(node)
            self.detached[value] = node.output()
            self.detached[node.output()] = node.output()
        return self.detached[value]

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _outputs(self, nodes: list[fx.Node]) -> Imported:
        (output,) = [node for node in nodes if node.op == "output"]
        inputs = {node: number for number, node in enumerate(node for node in nodes if node.op == "placeholder")}
        returned: Any = output.args[0]
        leaves = list(returned) if isinstance(returned, tuple | list) else [returned]
        made: list[Any] = []
        imported = Imported(self.graph, self.constants, [], [])
        for leaf, differentiable in zip(leaves, self.differentiable, strict=True):
            if isinstance(leaf, fx.Node) and leaf not in inputs and not isinstance(self.values[leaf], list):
                value = leaf.meta["val"]
                if differentiable:
                    imported.differentiable.append(len(made))
                    if value.dim() == 0 and value.is_floating_point():
                        imported.scalars.append(len(made))
                imported.results.append(len(made))
                imported.others.append(None)
                imported.nodes.append(leaf)
                made.append(self.values[leaf])
            elif isinstance(leaf, fx.Node) and leaf not in inputs:
                raise ImportRefused(f"{leaf.target}{place_of(leaf)} returns a list of tensors from the graph")
            else:
                imported.results.append(None)
                imported.others.append(Input(inputs[leaf]) if isinstance(leaf, fx.Node) else leaf)
        node = self.graph.create("prim::TupleConstruct", made, 1)
        node.output().setType(torch._C.TupleType([_TENSOR] * len(made)))
        self.graph.insertNode(node)
        self.graph.registerOutput(node.output())
        self.graph.lint()
        return imported


def imported(graph_module: fx.GraphModule, differentiable: list[bool]) -> Imported:
    """What `aten_of` gives, as the passes take it. Raises ImportRefused."""
    return _Importer(graph_module, differentiable).run()
