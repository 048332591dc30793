"""Every op that draws random numbers, by torch's own tag, and how a differentiable step calls it.

The list is torch's. The tables say what each op on it is good for, and `unlisted` finds what they lack.
"""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from support import assert_same, step
from torch import nn
from torch._ops import OpOverload
from training import prepare_gradients

CALLS: dict[str, str] = {
    "_sample_dirichlet": "x * torch._sample_dirichlet(p{g})",
    "_scaled_dot_product_attention_math": "join(torch._scaled_dot_product_attention_math(h, h, h, None, 0.2)[0])",
    "_standard_gamma": "x * torch._standard_gamma(p{g})",
    "alpha_dropout": "torch.alpha_dropout(x, 0.3, True)",
    "alpha_dropout_": "torch.alpha_dropout_(x + 1, 0.3, True)",
    "bernoulli": "x * torch.bernoulli(p{g})",
    "bernoulli.Tensor": "x * torch.ops.aten.bernoulli(x.detach(), p{g})",
    "bernoulli.p": "x * torch.bernoulli(p, 0.4{g})",
    "binomial": "x * torch.binomial(3 * torch.ones_like(p), p{g})",
    "cauchy": "x * torch.ops.aten.cauchy(p, 0., 1.{g})",
    "dropout": "torch.dropout(x, 0.3, True)",
    "dropout_": "torch.dropout_(x + 1, 0.3, True)",
    "exponential": "x * torch.ops.aten.exponential(p, 1.{g})",
    "feature_alpha_dropout": "torch.feature_alpha_dropout(x, 0.3, True)",
    "feature_alpha_dropout_": "torch.feature_alpha_dropout_(x + 1, 0.3, True)",
    "feature_dropout": "torch.feature_dropout(x, 0.3, True)",
    "feature_dropout_": "torch.feature_dropout_(x + 1, 0.3, True)",
    "geometric": "x * torch.ops.aten.geometric(p, 0.4{g})",
    "gru.input": "torch.gru(s, zeros(x), self.gru_weights(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "log_normal": "x * torch.ops.aten.log_normal(p, 0., .1{g})",
    "lstm.input": "torch.lstm(s, [zeros(x)] * 2, self.lstm_weights(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "multinomial": "x * torch.multinomial(p, 32, True{g})",
    "native_dropout": "torch.native_dropout(x, 0.3, True)[0]",
    "normal.Tensor_Tensor": "x * torch.normal(p, p{g})",
    "normal.Tensor_float": "x * torch.normal(p, 0.1{g})",
    "normal.float_Tensor": "x * torch.normal(0.1, p{g})",
    "normal.float_float": "x * torch.normal(0.1, 0.2, [64, 32], device=x.device{g})",
    "normal_functional": "x * torch.ops.aten.normal_functional(p, 0., 1.{g})",
    "poisson": "x * torch.poisson(p{g})",
    "rand": "x * torch.rand([64, 32], device=x.device)",
    "rand.generator": "x * torch.rand([64, 32], device=x.device{g})",
    "rand_like": "x * torch.rand_like(x)",
    "rand_like.generator": "x * torch.ops.aten.rand_like(p{g})",
    "randint": "x * torch.randint(5, [64, 32], device=x.device)",
    "randint.generator": "x * torch.randint(5, [64, 32], device=x.device{g})",
    "randint.low": "x * torch.randint(1, 5, [64, 32], device=x.device)",
    "randint.low_generator": "x * torch.randint(1, 5, [64, 32], device=x.device{g})",
    "randint_like": "x * torch.randint_like(p, 5)",
    "randint_like.generator": "x * torch.ops.aten.randint_like(p, 5{g})",
    "randint_like.low_dtype": "x * torch.randint_like(p, 1, 5)",
    "randint_like.low_generator_dtype": "x * torch.ops.aten.randint_like(p, 1, 5{g})",
    "randn": "x * torch.randn([64, 32], device=x.device)",
    "randn.generator": "x * torch.randn([64, 32], device=x.device{g})",
    "randn_like": "x * torch.randn_like(x)",
    "randn_like.generator": "x * torch.ops.aten.randn_like(p{g})",
    "random": "x * torch.ops.aten.random(p{g}) * 1e-6",
    "random.from": "x * torch.ops.aten.random(p, 1, 5{g})",
    "random.to": "x * torch.ops.aten.random(p, 5{g})",
    "randperm": "x[torch.randperm(64, device=x.device)]",
    "randperm.generator": "x[torch.randperm(64, device=x.device{g})]",
    "rnn_relu.input": "torch.rnn_relu(s, zeros(x), self.rnn_weights(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "rnn_tanh.input": "torch.rnn_tanh(s, zeros(x), self.rnn_weights(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "rrelu": "torch.rrelu(x, 0.1, 0.4, True{g})",
    "rrelu_": "torch.rrelu_(x + 0, 0.1, 0.4, True{g})",
    "rrelu_with_noise_functional": "x * torch.ops.aten.rrelu_with_noise_functional(x, p, 0.1, 0.4, True{g})[0]",
    "scaled_dot_product_attention": "join(nn.functional.scaled_dot_product_attention(h, h, h, None, 0.2))",
    "uniform": "x * torch.ops.aten.uniform(p, 0., 1.{g})",
}
"""What a step does with x, which requires grad, and p in (0, 1), which does not; both are 64x32. `h` is x in heads, `s`
a sequence. `{g}` is where a generator goes: such an op is called twice, with the default one and with the module's."""

WRITES: dict[str, str] = {
    "bernoulli.out": "x * torch.bernoulli(p, out=torch.empty_like(p){g})",
    "bernoulli_.Tensor": "x * torch.empty_like(p).bernoulli_(p{g})",
    "bernoulli_.float": "x * torch.empty_like(p).bernoulli_(0.4{g})",
    "cauchy_": "x * torch.empty_like(p).cauchy_(0., 1.{g})",
    "exponential_": "x * torch.empty_like(p).exponential_(1.{g})",
    "geometric_": "x * torch.empty_like(p).geometric_(0.4{g})",
    "log_normal_": "x * torch.empty_like(p).log_normal_(0., .1{g})",
    "normal_": "x * torch.empty_like(p).normal_(0., 1.{g})",
    "rand.out": "x * torch.rand([64, 32], out=torch.empty_like(p))",
    "random_": "x * torch.empty_like(p).random_({g}) * 1e-6",
    "random_.from": "x * torch.empty_like(p).random_(1, 5{g})",
    "random_.to": "x * torch.empty_like(p).random_(5{g})",
    "rrelu_with_noise": "torch.ops.aten.rrelu_with_noise(x, torch.zeros_like(p), 0.1, 0.4, True{g})",
    "rrelu_with_noise_": "torch.ops.aten.rrelu_with_noise_(x + 0, torch.zeros_like(p), 0.1, 0.4, True{g})",
    "uniform_": "x * torch.empty_like(p).uniform_(0., 1.{g})",
}
"""The same for ops that write into a tensor that they are given: what they draw is kept. Two do for all with out=."""

REFUSED: dict[str, tuple[str, str]] = {
    "gru.data": ("torch.gru(x, self.lengths, zeros(x), self.gru_weights(), True, 2, 0.3, True, False)[0]", "gru"),
    "lstm.data": (
        "torch.lstm(x, self.lengths, [zeros(x), zeros(x)], self.lstm_weights(), True, 2, 0.3, True, False)[0]",
        "lstm",
    ),
    "randint_like.Tensor": ("x * torch.ops.aten.randint_like(p, torch.tensor(5))", "randint_like"),
    "randint_like.Tensor_generator": (
        "x * torch.ops.aten.randint_like(p, torch.tensor(5), generator=self.generator)",
        "randint_like",
    ),
    "rnn_relu.data": (
        "torch.rnn_relu(x, self.lengths, zeros(x), self.rnn_weights(), True, 2, 0.3, True, False)[0]",
        "rnn",
    ),
    "rnn_tanh.data": (
        "torch.rnn_tanh(x, self.lengths, zeros(x), self.rnn_weights(), True, 2, 0.3, True, False)[0]",
        "rnn",
    ),
}
"""Whose shapes, or bounds, are data: the call, and the op that the error names."""

NOT_CALLED: dict[str, str] = {
    "_fused_sdp_choice": "returns a number, and draws nothing",
    "_scaled_dot_product_flash_attention_for_cpu": "takes no dropout: scaled_dot_product_attention calls it without",
    "_scaled_dot_product_fused_attention_overrideable": "a place for backends outside of torch; theirs is called",
    "prims::normal": "a primitive of torch.compile's decompositions, in Python",
    "prims::uniform": "a primitive of torch.compile's decompositions, in Python",
    "rngprims::philox_rand": "a primitive of torch.compile's decompositions, in Python; its state is an argument",
    "rand.generator_with_names": "named tensors, which TorchScript does not have",
    "rand.names": "named tensors, which TorchScript does not have",
    "randn.generator_with_names": "named tensors, which TorchScript does not have",
    "randn.names": "named tensors, which TorchScript does not have",
}


def name_of(op: OpOverload) -> str:
    """ "bernoulli.p", "prims::normal"."""
    return op.name().removeprefix("aten::")


def tagged() -> list[OpOverload]:
    """All ops that torch calls random."""
    found = []
    for qualified in torch._C._dispatch_get_all_op_names():
        name, _, overload = qualified.partition(".")
        namespace, _, packet = name.partition("::")
        op = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
        if op is not None and torch.Tag.nondeterministic_seeded in op.tags:
            found.append(op)
    return found


def writes_out(op: OpOverload) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)


def runs_on_cpu(op: OpOverload) -> bool:
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in keys)


def unlisted() -> list[str]:
    """Ops of which the tables say nothing, with a kernel for the CPU, and not with out=."""
    known = CALLS.keys() | WRITES.keys() | REFUSED.keys() | NOT_CALLED.keys()
    return sorted(name_of(op) for op in tagged() if name_of(op) not in known and runs_on_cpu(op) and not writes_out(op))


SOURCE = """
from typing import List

import torch
from torch import Tensor, nn


def zeros(x: Tensor) -> Tensor:
    return torch.zeros([2, 64, 32], device=x.device)


def join(heads: Tensor) -> Tensor:
    return heads.reshape(64, 32)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, 32)
        self.gru = nn.GRU(32, 32, 2)
        self.lstm = nn.LSTM(32, 32, 2)
        self.rnn = nn.RNN(32, 32, 2)
        self.generator = torch.Generator()
        self.register_buffer("lengths", torch.tensor([64]))
"""

WEIGHTS = """
    def {kind}_weights(self) -> List[Tensor]:
        m = self.{kind}
        return [m.weight_ih_l0, m.weight_hh_l0, m.bias_ih_l0, m.bias_hh_l0,
                m.weight_ih_l1, m.weight_hh_l1, m.bias_ih_l1, m.bias_hh_l1]
"""

STEP = """

class {kind}(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
{draws}
        x = torch.sigmoid(self.second(torch.tanh(x)))
        return self.third(torch.sigmoid(x))
"""

DRAW = """        p = torch.sigmoid(x.detach())
        h = x.view(2, 8, 4, 32)
        s = x.unsqueeze(0)
        x = {expression}
"""


def class_name(op: str) -> str:
    return "Op_" + op.replace(".", "__")


def draws_of(expression: str) -> str:
    if "{g}" not in expression:
        return DRAW.format(expression=expression)
    first = "({g}" in expression
    own = "generator=self.generator" if first else ", generator=self.generator"
    return "".join(DRAW.format(expression=expression.format(g=g)) for g in ("", own))


def modules(folder: Path) -> ModuleType:
    """A class for each op of the tables, in a file: TorchScript reads sources."""
    calls = CALLS | WRITES | {op: call for op, (call, _) in REFUSED.items()}
    text = SOURCE + "".join(WEIGHTS.format(kind=kind) for kind in ("gru", "lstm", "rnn"))
    text += "".join(STEP.format(kind=class_name(op), draws=draws_of(call)) for op, call in calls.items())
    file = folder / "drawing_modules.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("drawing_modules", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RANDOM = {f"aten::{name_of(op).partition('.')[0]}" for op in tagged()}


def module_of(modules: ModuleType, op: str, device: str) -> nn.Module:
    module = getattr(modules, class_name(op))().to(device)
    module.generator = torch.Generator(device)
    return module


def inputs_on(device: str) -> tuple[torch.Tensor]:
    return (torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(device),)


def drawn_again(op: str, module: str, name: str, size: int) -> str | None:
    """A pin on all that random ops make."""
    return "must_recompute" if op in RANDOM else None


def check(plain: nn.Module, budgeted: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Two steps of both leave the same bits, and the generators where they were."""
    for one in (plain, budgeted):
        prepare_gradients(one)
    device = inputs[0].device
    for seed in range(2):
        outcomes, own, streams = [], [], []
        for one in (plain, budgeted):
            one.generator.manual_seed(seed + 7)
            outcomes.append(step(one, inputs, seed=seed, between=lambda: torch.rand(3, device=device)))
            own.append(one.generator.get_state())
            streams.append(torch.rand(3, device=device))
        assert_same(*outcomes)
        assert torch.equal(*own), "the module's generator is elsewhere"
        assert torch.equal(*streams), "the device's generator is elsewhere"


def twin(module: nn.Module) -> nn.Module:
    other = copy.deepcopy(module)
    other.generator = torch.Generator(module.generator.device)
    return other
