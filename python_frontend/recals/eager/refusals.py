"""Which graphs of dynamo are known to be nothing but ATen ops.

Tracing a graph to ATen drops in silence what it does not see: the backward of an autograd.Function, a hook on a tensor,
the kernel that `sdpa_kernel` chooses. So every node must be known to be harmless before it is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx

from recals.eager.places import Place, place_of


class Refusal(NamedTuple):
    """What a graph does that is not planned."""

    what: str
    place: Place

    def __str__(self) -> str:
        return f"{self.what}{self.place}"


# --- functions --------------------------------------------------------------------------------------------------------

_ATTRIBUTES = {"T", "mT", "H", "mH", "real", "imag"}
"""What `getattr` reads of a tensor in a graph, and is a view of it."""

_PYTHON_FUNCTIONS = ("torch.nn.functional", "torch.functional", "torch._jit_internal")
"""Modules of torch that are written in Python and call nothing but ATen ops."""

_BUILTIN_MODULES = {
    "_operator",
    "math",
    "torch._C._nn",
    "torch._C._fft",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._nested",
}

_NOT_ATEN = {"_make_dual", "_unpack_dual", "_fw_primal", "frombuffer", "from_file", "resize_as_", "set_data"}
"""Members of `torch` that take part in something that a trace does not see."""

_HARMLESS = {
    "_set_grad_enabled",  # a state region, which the importer follows
    "sym_float",
    "sym_int",
    "sym_max",
    "sym_min",
    "sym_not",
    "_sym_sqrt",
    "_check",
    "_log_api_usage_once",  # says so at most once in a process
}

_IN_WORDS = {
    "autograd_function_apply": "calls an autograd.Function, whose backward a trace of its forward does not show",
    "_enter_autocast": "enters torch.autocast inside the model",
    "_exit_autocast": "leaves torch.autocast inside the model",
    "_backend_from_string": "chooses attention kernels (sdpa_kernel) inside the model",
    "_sdpa_kernel": "chooses attention kernels (sdpa_kernel) inside the model",
    "_enter_inference_mode": "enters inference mode inside the model",
    "_get_data_attr": "reads tensor.data; write tensor.detach()",
    "register_hook": "registers a hook on a tensor (register_hook)",
    "register_post_accumulate_grad_hook": "registers a hook on a tensor",
    "retain_grad": "calls retain_grad()",
    "requires_grad_": "calls requires_grad_() on a tensor of the step",
}


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target))


def _is_aten_function(target: Any) -> bool:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return True  # an op of the dispatcher, its own autograd included
    name, module = _name(target), getattr(target, "__module__", None) or ""
    if name in _HARMLESS:
        return True
    if module == "torch":
        known = (getattr(torch._C._VariableFunctions, name, None), torch.tensor, torch.as_tensor)
        return name not in _NOT_ATEN and any(target is function for function in known)
    return module in _BUILTIN_MODULES or module in _PYTHON_FUNCTIONS


# --- methods ----------------------------------------------------------------------------------------------------------

_PYTHON_METHODS = {
    "bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "cpu", "cuda", "dim", "double", "float", "half", "int",
    "long", "ndimension", "nelement", "new_tensor", "short", "size", "type", "unique", "__getitem__", "__setitem__",
    "new", "element_size", "stft", "istft", "norm", "split", "unflatten",
}  # fmt: skip
"""Methods of tensors that are ATen ops under another name."""

_NOT_METHODS = {"retain_grad", "requires_grad_", "set_", "set_data", "data", "_backward", "backward", "record_stream",
                "item", "resize_", "resize_as_", "_version", "rename", "rename_"}  # fmt: skip
"""Names of ATen ops that are more than their result."""


@cache
def _aten_names() -> frozenset[str]:
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(name.removeprefix("aten::").split(".")[0] for name in names if name.startswith("aten::"))


def _is_aten_method(name: str) -> bool:
    return name not in _NOT_METHODS and (name in _PYTHON_METHODS or name in _aten_names())


# --- graphs -----------------------------------------------------------------------------------------------------------


def _is_known(node: fx.Node) -> bool:
    if node.op == "call_method":
        return _is_aten_method(str(node.target))
    if node.op != "call_function":
        return bool(node.op != "call_module")
    if node.target is getattr:
        return bool(node.args[1] in _ATTRIBUTES)
    return _is_aten_function(node.target)


def _kind(node: fx.Node) -> str:
    name = _name(node.target)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        name = node.target.name()
    return _IN_WORDS.get(name, f"calls {name}, which is not known to be only ATen ops")


def refusals(graph_module: fx.GraphModule) -> Iterator[Refusal]:
    """What in a graph of dynamo is not known to be only ATen ops, in order."""
    nodes = list(graph_module.graph.nodes)
    for number, node in enumerate(nodes):
        if not _is_known(node):
            # Entering a region has no line of its own; the op behind it has one.
            places = (place_of(near) for near in [*nodes[number:], *reversed(nodes[:number])])
            yield Refusal(_kind(node), next((place for place in places if place.file), Place("", 0, "")))
