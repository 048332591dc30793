"""What each of torch's ops does with and without gradients, for calls that are made up from its schema.

A replay may run an op without grad mode, on inputs that require no grad, only if its kernel asks for neither. The list
of ops is torch's; the arguments of a call are guessed, and what no guess fits has a call in `CALLS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload

Kernels = list[tuple[str, Any]]

VIEWS = {
    "alias", "as_strided", "broadcast_to", "chunk", "conj", "contiguous", "detach", "diagonal", "expand", "expand_as",
    "flatten", "imag", "mH", "mT", "movedim", "narrow", "numpy_T", "permute", "real", "reshape", "reshape_as",
    "resolve_conj", "resolve_neg", "_reshape_alias", "select", "slice", "split", "split_with_sizes", "squeeze",
    "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose", "unbind", "unflatten", "unsqueeze", "_unsafe_view",
    "view", "view_as", "view_as_complex", "view_as_real",
}  # fmt: skip
"""Ops that compute nothing by themselves: which of them is called makes no difference to any bit. Whatever copies calls
`copy_`, which counts."""

ASKING: tuple[str, ...] = (
    "embedding_bag", "embedding_bag.padding_idx", "linalg_eigvals", "linalg_eigvalsh", "linalg_svdvals", "linear",
    "matmul", "max_pool1d", "quantile", "scaled_dot_product_attention",
)  # fmt: skip
"""Some that differ with and without gradients, so that a census that sees nothing is noticed."""

ASK_ELSEWHERE: dict[str, str] = {
    "convolution": "leaves out kernels without a backward (Winograd's on ARM) where a gradient is needed",
    "_convolution": "the same, as traces call it",
}
"""Ops with kernels of their own that ask on other machines: read in torch's sources."""

NOT_CALLED: tuple[str, ...] = (
    # Names of torch's inner parts: not for models, and some end the process when their promises are broken.
    "_", "fbgemm_", "quantize", "q_", "dequantize", "int_repr", "choose_qparams", "fake_quantize", "mkldnn_", "cudnn_",
    "miopen_", "sparse_", "to_sparse", "to_mkldnn", "nested_", "empty", "new_empty", "from_file", "set_", "resize",
    "record_stream", "pin_memory", "is_pinned", "crow_", "col_", "ccol_", "row_indices", "values", "indices",
    "coalesce", "hspmm", "smm", "sspaddmm", "to_padded_tensor", "rename", "refine_names", "align_",
    "matrix_exp_backward", "infinitely_differentiable_gelu_backward",
)  # fmt: skip
"""Ops whose names begin so are not called: they take what no dense float model has, make uninitialised memory, or are
parts that torch calls itself."""


def heads(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def recurrent(kind: str, x: Tensor) -> Tensor:
    """One layer of a recurrent network over x, of shape (batch, time, features)."""
    size = x.shape[2]
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    weights = [x[0, 0].new_full((gates * size, size), 0.1), x[0, 0].new_full((gates * size, size), -0.1)]
    weights = [w * x.sum() for w in weights]
    state = x.new_zeros(1, x.shape[0], size)
    first = (state, state) if kind == "lstm" else state
    return getattr(torch, kind)(x, first, weights, False, 1, 0.0, True, False, True)[0]


CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "embedding_bag": (
        lambda w: torch.embedding_bag(w, INDICES, OFFSETS, False, 0, False, None, True),
        ((8, 4),),
    ),
    "embedding_bag.padding_idx": (
        lambda w: torch.embedding_bag(w, INDICES, OFFSETS, False, 0, False, None, True, 0),
        ((8, 4),),
    ),
    "matmul": (lambda w, x: torch.matmul(w, x.transpose(1, 2)), ((16, 4), (3, 5, 4))),
    "linear": (lambda x, w: F.linear(x.transpose(0, 1), w), ((3, 5, 4), (8, 4))),
    "scaled_dot_product_attention": (
        lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask),
        ((2, 2, 8, 4), (8, 8)),
    ),
    "conv1d": (F.conv1d, ((2, 4, 16), (8, 4, 3))),
    "conv2d": (F.conv2d, ((2, 4, 8, 8), (8, 4, 3, 3))),
    "conv3d": (F.conv3d, ((2, 4, 4, 4, 4), (8, 4, 3, 3, 3))),
    "conv_transpose2d.input": (F.conv_transpose2d, ((2, 4, 8, 8), (4, 8, 3, 3))),
    "convolution": (
        lambda x, w: torch.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
        ((2, 4, 8, 8), (4, 1, 3, 3)),
    ),
    "lstm.input": (lambda x: recurrent("lstm", x), ((3, 5, 4),)),
    "gru.input": (lambda x: recurrent("gru", x), ((3, 5, 4),)),
    "rnn_tanh.input": (lambda x: recurrent("rnn_tanh", x), ((3, 5, 4),)),
    "rms_norm": (lambda x, w: F.rms_norm(x, [4], w), ((3, 5, 4), (4,))),
    "bilinear": (torch.bilinear, ((3, 4), (3, 5), (6, 4, 5), (6,))),
    "ctc_loss.IntList": (lambda x: F.ctc_loss(x.log_softmax(2), LABELS, [8, 8], [3, 3]), ((8, 2, 4),)),
    "einsum": (lambda w, x: torch.einsum("ij,bkj->bik", w, x), ((16, 4), (3, 5, 4))),
    "tensordot": (lambda w, x: torch.tensordot(w, x, [[1], [2]]), ((16, 4), (3, 5, 4))),
    "narrow.Tensor": (lambda x: torch.narrow(x, 0, torch.tensor(1), 2), ((3, 4),)),
    "tensor_split.tensor_indices_or_sections": (lambda x: torch.tensor_split(x, torch.tensor(2)), ((4, 4),)),
    "to.device": (lambda x: torch.ops.aten.to.device(x, torch.device("cpu"), torch.float64), ((3, 4),)),
    "unflatten.int": (lambda x: torch.unflatten(x, -1, [2, 2]), ((3, 4),)),
    "inner": (torch.inner, ((16, 4), (3, 5, 4))),
    "chain_matmul": (lambda a, b, c: torch.chain_matmul(a, b, c), ((2, 4), (4, 8), (8, 2))),
    "linalg_multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), ((2, 4), (4, 8), (8, 2))),
}
"""Calls that no guess finds: a function of tensors that may require grad, and their sizes."""

INDICES = torch.tensor([0, 2, 1, 3, 5, 7])
OFFSETS = torch.tensor([0, 2, 6])
LABELS = torch.tensor([[1, 2, 3], [3, 2, 1]])


def name_of(op: OpOverload) -> str:
    """ "matmul", "softmax.int"."""
    return op.name().removeprefix("aten::")


def functional_ops() -> list[OpOverload]:
    """Torch's own ops that make tensors of tensors and write into none."""
    found = []
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, full = qualified.partition("::")
        name, _, overload = full.partition(".")
        op = getattr(getattr(torch.ops.aten, name, None), overload or "default", None) if namespace == "aten" else None
        if op is None or op._schema.is_mutable:
            continue
        takes, gives = (
            any("Tensor" in str(part.type) for part in side) for side in (op._schema.arguments, op._schema.returns)
        )
        if takes and gives:
            found.append(op)
    return found


# ----------------------------------------------------------------------------------------------------------------------
# Arguments


def float_tensors() -> list[Tensor]:
    """Shapes that most ops take: all between 0.1 and 0.9, so that domains are kept."""
    generator = torch.Generator().manual_seed(3)

    def made(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 0.8 + 0.1

    square = made(4, 4)
    return [made(4, 6), square @ square.T + torch.eye(4), made(2, 4, 6), made(2, 4, 8, 8), made(6), made(2, 2, 4, 4, 4)]


NUMBERS: dict[str, Any] = {
    "dim": -1, "dim0": 0, "dim1": 1, "dims": [-1], "kernel_size": 2, "output_size": 2, "num_groups": 2, "groups": 1,
    "n": 2, "k": 1, "p": 0.5, "shape": [-1], "eps": 1e-5, "normalized_shape": [6], "lambd": 0.2, "sections": 2,
    "chunks": 2, "repeats": 2, "shifts": 1, "pad": [1, 1], "padding": 0, "stride": 1, "dilation": 1, "index": 0,
    "start": 0, "length": 2, "split_size": 2, "upscale_factor": 2, "downscale_factor": 2, "negative_slope": 0.1,
    "num_classes": 8, "threshold": 0.5, "value": 0.5, "exponent": 2, "min": 0.2, "max": 0.7, "size": [4, 6],
    "dtype": torch.float32,
    "reduction": 1, "ord": 2.0, "correction": 1, "norm_type": 2.0, "alpha": 1.5, "lower": 0.1, "upper": 0.3,
    "train": True, "training": True, "equation": "...j->...", "UPLO": "L", "reduce": "sum", "indexing": "ij",
    "scale_factors": [2.0, 2.0], "scales": None, "n_fft": 8, "offset": 0, "diagonal": 0,
}  # fmt: skip
"""Values that go by the name of an argument; other names take a value that goes by the type."""

INTEGERS = {"index", "indices", "target", "targets", "offsets", "batch_indices", "lengths", "repeats"}


def plain_value(argument: Any, dimensions: int) -> Any:
    """A value for an argument that is no tensor."""
    kind = str(argument.type)
    name = argument.name
    if argument.has_default_value() and name not in ("kernel_size", "reduction"):
        return argument.default_value
    if "List[int]" in kind or "List[SymInt]" in kind:
        value = NUMBERS.get(name, 1)
        return value if isinstance(value, list) else [value] * max(dimensions - 2, 1)
    if name in NUMBERS:
        return NUMBERS[name]
    if kind.startswith("Optional"):
        return None
    return {"bool": False, "int": 1, "float": 0.5, "number": 0.5, "str": "mean"}.get(kind.lower(), 1)


def tensor_value(argument: Any, tensor: Tensor) -> Any:
    if argument.name in INTEGERS:
        return torch.zeros(tensor.shape[-1:], dtype=torch.long)
    if argument.name in ("mask", "condition"):
        return tensor > 0.5
    return [tensor, tensor * 0.5] if "List" in str(argument.type) else tensor


def guesses(op: OpOverload) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments that may fit: all tensors of one shape, then of two."""
    arguments = op._schema.arguments
    takes_tensor = [i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
    optional = [i for i in takes_tensor if str(arguments[i].type).startswith("Optional")]
    shapes = float_tensors()
    pairs = sorted(itertools.product(range(len(shapes)), repeat=2), key=lambda pair: pair[0] != pair[1])
    for fill, pair in itertools.product((False, True), pairs):
        if fill and not optional:
            return
        first, second = shapes[pair[0]], shapes[pair[1]]
        if len(takes_tensor) == 1 and pair[0] != pair[1]:
            continue
        positional, named = [], {}
        for i, argument in enumerate(arguments):
            if i not in takes_tensor:
                value = plain_value(argument, first.dim())
            elif i in optional and not fill:
                value = None
            else:
                value = tensor_value(argument, first if i == takes_tensor[0] else second)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        yield positional, named


# ----------------------------------------------------------------------------------------------------------------------
# Calls


@dataclass
class Call:
    """A function of tensors that may require grad."""

    function: Callable[[list[Tensor]], Any]
    tensors: list[Tensor]


def leaves_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return []


def replaced(value: Any, tensors: Iterator[Tensor]) -> Any:
    """`value` with other tensors in the places of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, (list, tuple)):
        return [replaced(item, tensors) for item in value]
    return value


def made_up_calls(op: OpOverload, most: int = 2) -> Iterator[Call]:
    """Calls of `op` that run."""
    found = 0
    shapes = set()
    for positional, named in guesses(op):
        tensors = leaves_of([positional, list(named.values())])
        call = Call(lambda given, positional=positional, named=named: filled(op, positional, named, given), tensors)
        signature = tuple(t.shape for t in tensors)
        if signature in shapes or not runs(call):
            continue
        shapes.add(signature)
        yield call
        found += 1
        if found == most:
            return


def filled(op: OpOverload, positional: list[Any], named: dict[str, Any], given: list[Tensor]) -> Any:
    tensors = iter(given)
    positional = replaced(positional, tensors)
    return op(*positional, **dict(zip(named, replaced(list(named.values()), tensors), strict=True)))


def runs(call: Call) -> bool:
    try:
        with torch.no_grad():
            call.function(call.tensors)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return False
    return True


def written_call(op: str) -> Call:
    function, shapes = CALLS[op]
    return Call(lambda given: function(*given), [heads(*shape) for shape in shapes])


def calls_of(op: OpOverload) -> list[Call]:
    name = name_of(op)
    calls = [written_call(name)] if name in CALLS else []
    if name.startswith(NOT_CALLED):
        return calls
    return calls + list(made_up_calls(op))


def laid_out(tensor: Tensor, transposed: bool) -> Tensor:
    """The same elements, with the last two dimensions the other way round in memory if they shall be."""
    if transposed and tensor.dim() > 1:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    return tensor.clone()


# ----------------------------------------------------------------------------------------------------------------------
# What a call does


@dataclass
class Seen:
    """The outcome of a call."""

    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)


def seen(call: Call, tensors: list[Tensor], require: tuple[int, ...] | None) -> Seen:
    """`require`: which tensors require grad; None: grad mode is off."""
    inputs = [tensor.detach() for tensor in tensors]
    for number in require or ():
        inputs[number].requires_grad_()
    torch.manual_seed(0)
    with (
        torch.set_grad_enabled(require is not None),
        torch.autograd.profiler.profile(use_cpu=True) as profile,
    ):
        outputs = call.function(inputs)
    events = sorted(profile.function_events, key=lambda event: (event.time_range.start, -event.time_range.end))
    kernels = [event.name.removeprefix("aten::") for event in events]
    return Seen(
        [(leaf.shape, strides(leaf), leaf.dtype, bits(leaf)) for leaf in leaves_of(outputs)],
        [kernel for kernel in kernels if kernel not in VIEWS],
    )


def strides(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout == torch.strided else ()


def bits(tensor: Tensor) -> bytes:
    if tensor.layout != torch.strided:
        return b""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return dense.view(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def differences(call: Call) -> set[str]:
    """What differs with and without gradients: "outputs", "kernels"."""
    found = set()
    for transposed in (False, True):
        tensors = [laid_out(tensor, transposed) for tensor in call.tensors]
        differentiable = [i for i, tensor in enumerate(tensors) if tensor.is_floating_point() or tensor.is_complex()]
        try:
            without = seen(call, tensors, None)
        except RuntimeError:
            continue  # does not take this layout
        alone = [(i,) for i in differentiable] if len(differentiable) > 1 else []
        for require in [tuple(differentiable), *alone]:
            try:
                with_grad = seen(call, tensors, require)
            except (RuntimeError, NotImplementedError):
                continue  # has no derivative
            if with_grad.outputs != without.outputs and seen(call, tensors, None).outputs == without.outputs:
                found.add("outputs")  # and it is not just memory that nobody has written
            if with_grad.kernels != without.kernels:
                found.add("kernels")
    return found
