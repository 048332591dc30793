"""Every op of torch that draws random numbers, by torch's own tag, and how a differentiable step calls it.

The list is torch's; the tables here say what each op on it is good for, and `unlisted` finds what they lack.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

CALLS: dict[str, str] = {
    "alpha_dropout": "torch.alpha_dropout(x, 0.3, True)",
    "alpha_dropout_": "torch.ops.aten.alpha_dropout_(x + 1, 0.3, True)",
    "bernoulli": "x * torch.bernoulli(p{g})",
    "bernoulli.Tensor": "x * torch.ops.aten.bernoulli(x.detach(), p{g})",
    "bernoulli.p": "x * torch.bernoulli(p, 0.4{g})",
    "bernoulli.out": "x * torch.bernoulli(p, out=torch.empty_like(p){g})",
    "bernoulli_.Tensor": "x * torch.empty_like(p).bernoulli_(p{g})",
    "bernoulli_.float": "x * torch.empty_like(p).bernoulli_(0.4{g})",
    "binomial": "x * torch.binomial(3 * torch.ones_like(p), p{g})",
    "cauchy": "x * torch.ops.aten.cauchy(p, 0., 1.{g})",
    "cauchy_": "x * torch.empty_like(p).cauchy_(0., 1.{g})",
    "dropout": "torch.dropout(x, 0.3, True)",
    "dropout_": "torch.dropout_(x + 1, 0.3, True)",
    "exponential": "x * torch.ops.aten.exponential(p, 1.{g})",
    "exponential_": "x * torch.empty_like(p).exponential_(1.{g})",
    "feature_alpha_dropout": "torch.feature_alpha_dropout(x, 0.3, True)",
    "feature_alpha_dropout_": "torch.feature_alpha_dropout_(x + 1, 0.3, True)",
    "feature_dropout": "torch.feature_dropout(x, 0.3, True)",
    "feature_dropout_": "torch.feature_dropout_(x + 1, 0.3, True)",
    "geometric": "x * torch.ops.aten.geometric(p, 0.4{g})",
    "geometric_": "x * torch.empty_like(p).geometric_(0.4{g})",
    "gru.input": "torch.gru(x.unsqueeze(0), zeros(x), self.gru(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "log_normal": "x * torch.ops.aten.log_normal(p, 0., .1{g})",
    "log_normal_": "x * torch.empty_like(p).log_normal_(0., .1{g})",
    "lstm.input": "torch.lstm(x.unsqueeze(0), [zeros(x), zeros(x)], self.lstm(), True, 2, 0.3, True, False, False)[0]"
    ".squeeze(0)",
    "multinomial": "x * torch.multinomial(p, 32, True{g})",
    "native_dropout": "torch.native_dropout(x, 0.3, True)[0]",
    "normal.Tensor_Tensor": "x * torch.normal(p, p{g})",
    "normal.Tensor_float": "x * torch.normal(p, 0.1{g})",
    "normal.float_Tensor": "x * torch.normal(0.1, p{g})",
    "normal.float_float": "x * torch.normal(0.1, 0.2, [64, 32], device=x.device{g})",
    "normal_": "x * torch.empty_like(p).normal_(0., 1.{g})",
    "normal_functional": "x * torch.ops.aten.normal_functional(p, 0., 1.{g})",
    "poisson": "x * torch.poisson(p{g})",
    "rand": "x * torch.rand([64, 32], device=x.device)",
    "rand.generator": "x * torch.rand([64, 32], device=x.device{g})",
    "rand.out": "x * torch.rand([64, 32], out=torch.empty_like(p))",
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
    "random_": "x * torch.empty_like(p).random_({0}) * 1e-6",
    "random_.from": "x * torch.empty_like(p).random_(1, 5{g})",
    "random_.to": "x * torch.empty_like(p).random_(5{g})",
    "randperm": "x[torch.randperm(64, device=x.device)]",
    "randperm.generator": "x[torch.randperm(64, device=x.device{g})]",
    "rnn_relu.input": "torch.rnn_relu(x.unsqueeze(0), zeros(x), self.rnn(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "rnn_tanh.input": "torch.rnn_tanh(x.unsqueeze(0), zeros(x), self.rnn(), True, 2, 0.3, True, False, False)[0].squeeze(0)",
    "rrelu": "torch.rrelu(x, 0.1, 0.4, True{g})",
    "rrelu_": "torch.rrelu_(x + 0, 0.1, 0.4, True{g})",
    "rrelu_with_noise": "torch.ops.aten.rrelu_with_noise(x, torch.zeros_like(p), 0.1, 0.4, True{g})",
    "rrelu_with_noise_": "torch.ops.aten.rrelu_with_noise_(x + 0, torch.zeros_like(p), 0.1, 0.4, True{g})",
    "rrelu_with_noise_functional": "torch.ops.aten.rrelu_with_noise_functional(x, torch.zeros_like(p), 0.1, 0.4, True{g})"
    "[0]",
    "scaled_dot_product_attention": "torch.scaled_dot_product_attention(heads(x), heads(x), heads(x), dropout_p=0.2)"
    ".reshape(64, 32)",
    "uniform": "x * torch.ops.aten.uniform(p, 0., 1.{g})",
    "uniform_": "x * torch.empty_like(p).uniform_(0., 1.{g})",
    "_sample_dirichlet": "x * torch._sample_dirichlet(p{g})",
    "_scaled_dot_product_attention_math": "torch._scaled_dot_product_attention_math(heads(x), heads(x), heads(x), None, 0.2)"
    "[0].reshape(64, 32)",
    "_standard_gamma": "x * torch._standard_gamma(p{g})",
}
"""What stands in the middle of a step; x requires grad, p is in (0, 1) and does not, both are 64x32. `{g}` is where a
generator goes: such an op is called with the module's and with the default one."""


def tagged() -> list[torch._ops.OpOverload]:
    """All ops that torch calls random, with a fixed seed of theirs or without."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        qualified, _, overload = name.partition(".")
        namespace, _, op = qualified.partition("::")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        op = getattr(packet, overload or "default", None)
        if op is not None and torch.Tag.nondeterministic_seeded in op.tags:
            found.append(op)
    return found
