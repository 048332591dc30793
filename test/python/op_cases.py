"""Lines of TorchScript that use one op each, between two products, and the modules made of them."""

import linecache
import re
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH = 64, 96
"""`x` is [64, 96] and requires grad."""

CASES: dict[str, list[str]] = {
    "pointwise": [
        "torch.relu(x)",
        "F.gelu(x)",
        "F.silu(x)",
        "F.mish(x)",
        "torch.tanh(x)",
        "torch.sigmoid(x)",
        "F.elu(x)",
        "F.leaky_relu(x)",
        "F.softplus(x)",
        "F.hardswish(x)",
        "F.hardtanh(x)",
        "F.logsigmoid(x)",
        "torch.exp(x)",
        "torch.log1p(x.abs())",
        "torch.sqrt(x.abs() + 1)",
        "torch.rsqrt(x.abs() + 1)",
        "x ** 2",
        "x ** 3",
        "x.pow(x)",
        "torch.erf(x)",
        "torch.sin(x)",
        "torch.where(x > 0, x, x * 2)",
        "torch.clamp(x, -1, 1)",
        "torch.maximum(x, -x)",
        "torch.lerp(x, -x, 0.3)",
        "torch.addcmul(x, x, x)",
        "torch.atan2(x, x + 2)",
        "x.masked_fill(x > 0.5, 0.0)",
        "torch.cat([F.glu(x), F.glu(-x)], 1)",
        "torch.nan_to_num(x)",
        "x % 0.7",
        "torch.hypot(x, x + 1)",
    ],
    "random": [
        "F.dropout(x, 0.1)",
        "F.alpha_dropout(x, 0.1, True)",
        "F.feature_alpha_dropout(image, 0.1, True).sum() + x",
        "F.dropout2d(image, 0.1).sum() + x",
        "x + torch.rand_like(x)",
        "x * torch.bernoulli(torch.sigmoid(x))",
        "F.rrelu(x, 0.1, 0.3, True)",
        "x + torch.randn_like(x)",
    ],
    "reductions": [
        "x.sum(1, keepdim=True) + x",
        "x.mean(0) + x",
        "x.var(1, keepdim=True) + x",
        "x.std(0) + x",
        "x.amax(1, keepdim=True) + x",
        "x.logsumexp(1, keepdim=True) + x",
        "x.cumsum(1)",
        "torch.relu(x).cumprod(1)",  # with zeros, which products' backwards look for
        "torch.linalg.vector_norm(x, dim=1, keepdim=True) + x",
        "x.max(1, keepdim=True)[0] + x",
        "x.median(1, keepdim=True)[0] + x",
        "torch.relu(x).prod(1, keepdim=True) + x",
        "(x * 0).prod() + x",
        "torch.softmax(x, 1)",
        "torch.log_softmax(x, 0)",
        "F.normalize(x, dim=1)",
        "torch.cummax(x, 1)[0]",
    ],
    "norms": [
        "F.layer_norm(x, [96])",
        "F.rms_norm(x, [96])",
        "F.batch_norm(x, None, None, None, None, True)",
        "F.group_norm(image, 3).flatten(1).sum() + x",
        "F.instance_norm(image).flatten(1).sum() + x",
        "F.local_response_norm(image, 3).sum() + x",
    ],
    "matrices": [
        "torch.einsum('ij,kj->ik', x, x) @ x",
        "torch.bmm(seq, seq.transpose(1, 2)).sum() + x",
        "x @ x.t() @ x",
        "torch.baddbmm(seq @ seq.transpose(1, 2), seq, seq.transpose(1, 2)).sum() + x",
        "torch.outer(x[0], x[1]).sum() + x",
        "torch.einsum('bij,bkj->bik', seq, seq).sum() + x",
        "torch.cdist(x, x).sum() + x",
        "torch.tensordot(x, x, dims=[[1], [1]]) @ x",
        "F.bilinear(x, x, weight3).sum() + x",
        "torch.kron(x[:4, :4], x[:8, :8]).sum() + x",
        "torch.linalg.matrix_exp(x[:32, :32]).sum() + x",
        "torch.linalg.eigvals(x[:32, :32]).abs().sum() + x",
        "torch.matmul(seq, x[:, :64].t()).sum() + x",
    ],
    "convolutions": [
        "F.conv1d(signal, kernel1, padding=1).sum() + x",
        "F.conv2d(image, kernel2, padding=1).sum() + x",
        "F.conv3d(volume, kernel3, padding=1).sum() + x",
        "F.conv_transpose2d(image, kernel2t, stride=2).sum() + x",
        "F.conv2d(image, depthwise, padding=1, groups=6).sum() + x",
        "F.conv2d(image, kernel2, stride=2).sum() + x",
        "F.conv2d(image, kernel2, padding=2, dilation=2).sum() + x",
        "F.unfold(image, 3).sum() + x",
    ],
    "pooling": [
        "F.max_pool2d(image, 2).sum() + x",
        "F.avg_pool2d(image, 2).sum() + x",
        "F.max_pool1d(signal, 2).sum() + x",
        "F.avg_pool1d(signal, 2).sum() + x",
        "F.max_pool3d(volume, 2).sum() + x",
        "F.avg_pool3d(volume, 2).sum() + x",
        "F.adaptive_avg_pool2d(image, 4).sum() + x",
        "F.adaptive_max_pool2d(image, 4).sum() + x",
        "F.adaptive_avg_pool1d(signal, 4).sum() + x",
        "F.lp_pool2d(image.abs() + 1, 2.0, 2).sum() + x",
        "F.fractional_max_pool2d(image, 2, output_size=[8, 8]).sum() + x",
        "F.adaptive_avg_pool3d(volume, 2).sum() + x",
    ],
    "padding and resampling": [
        "F.pad(image, [1, 1, 1, 1]).sum() + x",
        "F.pad(image, [1, 1, 1, 1], 'reflect').sum() + x",
        "F.pad(image, [1, 1, 1, 1], 'replicate').sum() + x",
        "F.pad(image, [1, 1, 1, 1], 'circular').sum() + x",
        "F.interpolate(image, scale_factor=2.0).sum() + x",
        "F.interpolate(image, scale_factor=2.0, mode='bilinear').sum() + x",
        "F.interpolate(image, scale_factor=2.0, mode='bicubic').sum() + x",
        "F.interpolate(signal, scale_factor=2.0, mode='linear').sum() + x",
        "F.interpolate(volume, scale_factor=2.0, mode='trilinear').sum() + x",
        "F.interpolate(image, size=[8, 8], mode='area').sum() + x",
        "F.pixel_shuffle(F.pad(image, [0, 0, 0, 0, 0, 2]), 2).sum() + x",
        "F.grid_sample(image, F.affine_grid(torch.eye(3)[:2].expand(4, 2, 3), [4, 6, 32, 32])).sum() + x",
    ],
    "attention": [
        "F.scaled_dot_product_attention(heads, heads, heads).sum() + x",
        "F.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum() + x",
        "F.scaled_dot_product_attention(heads, heads, heads, attn_mask=allowed).sum() + x",
        "F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1).sum() + x",
        "F.scaled_dot_product_attention(seq, seq, seq).sum() + x",
    ],
    "indexing": [
        "x[index]",
        "x.index_select(0, index)",
        "x.gather(0, index[:, None].expand(64, 96))",
        "x.scatter(0, index[:, None].expand(64, 96), x)",
        "x.scatter_add(0, index[:, None].expand(64, 96), x)",
        "x.index_add(0, index, x)",
        "x.scatter_reduce(0, index[:, None].expand(64, 96), x, 'amax')",
        "x.index_put([index.argsort()], x)",  # no row twice: threads would race for it
        "F.embedding(index, table)",
        "x.sort(1)[0]",
        "x.topk(8, 1)[0].sum() + x",
        "torch.flip(x, [0])",
        "torch.roll(x, 3, 0)",
        "torch.tril(x)",
        "torch.triu(x)",
        "torch.diagonal(x).sum() + x",
        "x.masked_select(x > 0).sum() + x",
        "torch.stack([x, -x]).sum(0)",
        "torch.cat([x, x], 1)[:, :96]",
        "torch.chunk(x, 2, 1)[0].sum() + x",
        "x.repeat(2, 1)[:64]",
        "x.unfold(1, 8, 4).sum() + x",
        "x.take_along_dim(index[:, None], 0).sum() + x",
        "F.embedding_bag(index, table, offsets, mode='sum').sum() + x",
        "torch.index_copy(x, 0, index[:1], x[:1])",
    ],
    "losses": [
        "F.cross_entropy(x, labels) + x",
        "F.cross_entropy(x, labels, label_smoothing=0.1) + x",
        "F.nll_loss(F.log_softmax(x, 1), labels) + x",
        "F.mse_loss(x, x * 2) + x",
        "F.l1_loss(x, x * 2) + x",
        "F.smooth_l1_loss(x, x * 2) + x",
        "F.huber_loss(x, x * 2) + x",
        "F.binary_cross_entropy_with_logits(x, torch.sigmoid(x)) + x",
        "F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(-x)) + x",
        "F.kl_div(F.log_softmax(x, 1), F.softmax(-x, 1), reduction='batchmean') + x",
        "F.cosine_embedding_loss(x, -x, torch.ones(64)) + x",
        "F.hinge_embedding_loss(x, torch.ones_like(x)) + x",
        "F.margin_ranking_loss(x, -x, torch.ones_like(x)) + x",
        "F.triplet_margin_loss(x, -x, x * 2) + x",
        "F.soft_margin_loss(x, torch.ones_like(x)) + x",
        "F.multi_margin_loss(x, labels) + x",
        "F.poisson_nll_loss(x, x.abs()) + x",
        "F.cosine_similarity(x, -x).sum() + x",
        "F.pairwise_distance(x, -x).sum() + x",
    ],
    "spectra and complex numbers": [
        "torch.fft.rfft(x).abs().sum() + x",
        "torch.fft.irfft(torch.fft.rfft(x)) + x",
        "torch.fft.fft2(image).real.sum() + x",
        "torch.view_as_real(torch.fft.fft(x)).sum() + x",
        "torch.complex(x, -x).abs() + x",
        "torch.polar(x.abs(), x).real + x",
        "(torch.complex(x, x) * torch.complex(x, -x)).imag + x",
    ],
    "dtypes": [
        "(half @ half.t()).float() @ x",
        "F.gelu(half).float() + x",
        "F.layer_norm(half, [96]).float() + x",
        "torch.softmax(half, 1).float() + x",
        "x.double().tanh().float()",
        "x.half().float() + x",
        "(half + x).float()",
        "F.dropout(half, 0.1).float() + x",
        "half.mean(1, keepdim=True).float() + x",
        "half.sum(1, keepdim=True).float() + x",
    ],
}

SOURCE = """
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def channels_last(x: Tensor) -> Tensor:
    if x.dim() == 4:
        return x.contiguous(memory_format=torch.channels_last)
    if x.dim() == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    return x


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 96)
        self.last = nn.Linear(96, 16)
        for name, sizes in {
            "weight3": (4, 96, 96), "kernel1": (16, 8, 3), "kernel2": (16, 6, 3, 3), "kernel3": (8, 4, 3, 3, 3),
            "kernel2t": (6, 8, 2, 2), "depthwise": (6, 1, 3, 3), "table": (50, 96),
        }.items():
            self.register_parameter(name, nn.Parameter(torch.randn(sizes) * 0.1))
        self.register_buffer("allowed", torch.ones(32, 32).tril() > 0)
        self.register_buffer("offsets", torch.tensor([0, 10, 30]))

    def forward(self, features: Tensor, index: Tensor, labels: Tensor) -> Tensor:
        x = self.first(features)
PREPARE        y = CASE
        return self.last(y).square().mean()
"""


PREPARE = {
    "weight3": "self.weight3",
    "kernel1": "self.kernel1",
    "kernel2": "self.kernel2",
    "kernel3": "self.kernel3",
    "kernel2t": "self.kernel2t",
    "depthwise": "self.depthwise",
    "table": "self.table",
    "allowed": "self.allowed",
    "offsets": "self.offsets",
    "image": "x.repeat(4, 1).view(4, 6, 32, 32)",
    "volume": "x[:, :64].reshape(2, 4, 8, 8, 8)",
    "signal": "x[:, :32].reshape(4, 8, 64)",
    "seq": "x.repeat(2, 1)[:, :64].reshape(4, 32, 64)",
    "heads": "x.repeat(2, 1)[:, :64].reshape(4, 32, 4, 16).transpose(1, 2)",
    "half": "x.to(torch.bfloat16)",
}
"""What a case may use besides `x`, `index` and `labels`; only what it uses is computed."""


LAYOUTS = {
    "contiguous": "{0}",
    "channels_last": "channels_last({0})",
    "transposed": "{0}.transpose(-1, -2).contiguous().transpose(-1, -2)",
    "strided": "torch.stack([{0}, {0}], -1).select(-1, 1)",
}
"""How what a case uses is laid out: what is done to each tensor of it."""


def module_of(case: str, number: int, layout: str = "contiguous") -> nn.Module:
    """A module made from source, which TorchScript reads through linecache."""
    used = [name for name in PREPARE if re.search(rf"\b{name}\b", case)]
    lines = "".join(f"        {name} = {PREPARE[name]}\n" for name in used)
    if layout != "contiguous":
        computed = ["x", *(name for name in used if not PREPARE[name].startswith("self."))]
        lines += "".join(f"        {name} = {LAYOUTS[layout].format(name)}\n" for name in computed)
    source = SOURCE.replace("PREPARE", lines).replace("CASE", case)
    name = f"case{number}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    return namespace["Module"]().train()


def inputs() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(ROWS, 48, generator=generator),
        torch.randint(50, (ROWS,), generator=generator),
        torch.randint(WIDTH, (ROWS,), generator=generator),
    )


EXPECTED_REFUSALS = {
    "x.masked_select(x > 0).sum() + x",
}
"""Its shape depends on data."""

MADE_ON_THE_HOST = ("torch.ones(", "torch.eye(")
"""Cases that make a tensor without saying where."""
