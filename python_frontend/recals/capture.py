"""What TorchScript has left of a Python module is not always what that does.

`torch.jit.trace` writes down what the module did in one call: train() and eval() change nothing in it any more.
`torch.jit.script` leaves the renormalisation of embeddings out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_FLAGS = ("train", "training")
"""Arguments that `Module.training` becomes."""


@dataclass
class _Flagged:
    """An op that goes another way in training."""

    op: str
    module: str
    training: bool

    def __str__(self) -> str:
        return self.op + (f" of {self.module}" if self.module else "")


def is_traced(module: torch.jit.ScriptModule) -> bool:
    """Is the module, or one inside it, a trace that this process has made? (A loaded file does not tell.)"""
    kinds = (torch.jit.TopLevelTracedModule, torch.jit._trace.TracedModule)
    return any(isinstance(inner, kinds) for inner in module.modules())


def capture_warnings(module: torch.jit.ScriptModule, graph: torch._C.Graph) -> list[str]:
    """What there is to say about `graph`, the step of `module`, and the Python module behind it."""
    return [*_modes(module, graph), *_renormalisation(module, graph)]


def _renormalisation(module: torch.jit.ScriptModule, graph: torch._C.Graph) -> Iterator[str]:
    if any(node.kind() == "aten::embedding_renorm_" for node in graph.nodes()):
        return
    for name, inner in module.named_modules():
        if getattr(inner, "original_name", "") in ("Embedding", "EmbeddingBag") and getattr(inner, "max_norm", None):
            yield (
                f"recals: torch.jit.script leaves out what max_norm does in {name or 'the module'}: its rows are not "
                "made shorter, as those of the eager module are. Trace the module, or call torch.embedding_renorm_ "
                "outside of it."
            )


def _modes(module: torch.jit.ScriptModule, graph: torch._C.Graph) -> list[str]:
    if not is_traced(module):
        return []
    flagged = list(_flagged(graph))
    training = [node for node in flagged if node.training]
    if training:
        return [
            f"recals: this module was traced in training mode, and eval() changes nothing in it: {_listed(training)} "
            "will train on in an evaluation. Evaluate the module that it was traced from (the parameters are its own), "
            "or script it: torch.jit.script(module)."
        ]
    if flagged and module.training:
        return [
            "recals: this module is in training mode, but was traced in evaluation mode, and train() changes nothing "
            f"in it: {_listed(flagged)} will not train. Trace it again after train(), or script it."
        ]
    return []


def _listed(nodes: list[_Flagged]) -> str:
    others = len(nodes) - 1
    return str(nodes[0]) + (f" and {others} {'other' if others == 1 else 'others'}" if others else "")


def _flagged(graph: torch._C.Graph) -> Iterator[_Flagged]:
    for node in graph.nodes():
        schema = node.schema()
        if schema == "(no schema)":
            continue
        arguments = torch._C.parse_schema(schema).arguments
        names = [argument.name for argument in arguments]
        flag = next((names.index(name) for name in _FLAGS if name in names), None)
        value = None if flag is None else node.inputsAt(flag).toIValue()
        if not isinstance(value, bool) or _keeps_no_statistics(node, names):
            continue
        yield _Flagged(node.kind(), node.scopeName(), value)


def _keeps_no_statistics(node: torch._C.Node, names: list[str]) -> bool:
    """A norm without running statistics does the same in both modes."""
    if "running_mean" not in names:
        return False
    mean = node.inputsAt(names.index("running_mean"))
    return bool(mean.node().kind() == "prim::Constant")
