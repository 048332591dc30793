"""Two dozen models of the kinds that people train, made from small configurations: nothing is downloaded.

Each entry makes a `Specimen`: the eager module, the inputs of a step, how the module becomes TorchScript, and the
autocast dtype it trains under, if any. Sizes are such that a step takes about a second on one core and its activations
some tens of megabytes.

Where a library's usual training call returns the loss (transformers), the loss is in the module; elsewhere the module
returns logits and the loss is outside.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import models
import torch
import torch.nn.functional as F
import training
from torch import Tensor, nn


class Specimen(NamedTuple):
    """A module and what a training step of it needs."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[[Any], Tensor]
    """From the module's output to a scalar."""
    traced: bool = False
    """Captured by torch.jit.trace; otherwise by torch.jit.script."""
    autocast: torch.dtype | None = None
    """The step's forward runs under autocast of this dtype."""

    def captured(self) -> torch.jit.ScriptModule:
        """The module as TorchScript: the same parameters, the random stream where it was."""
        if not self.traced:
            return torch.jit.script(self.module)
        with torch.random.fork_rng(devices=[]):
            # The trace's own forward counts as none: a module in training would update its statistics.
            state = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
            traced = torch.jit.trace(self.module, self.inputs, check_trace=False, strict=False)
            with torch.no_grad():
                for name, buffer in self.module.named_buffers():
                    buffer.copy_(state[name])
        return traced

    def casting(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast that the forward runs under."""
        return torch.autocast("cpu", self.autocast) if self.autocast else contextlib.nullcontext()

    def step(self, module: nn.Module) -> Callable[[], Any]:
        """One step of `module` without the update, ready to run: gradients zeroed, random stream seeded."""

        def run() -> None:
            with self.casting():
                loss = self.loss(module(*self.inputs))
            loss.backward()

        training.zero_gradients(module)
        torch.manual_seed(1)
        return run

    def measured_peak(self, module: nn.Module) -> int:
        """Bytes of the second step: the first one fills caches of weights."""
        training.prepare_gradients(module)
        self.step(module)()
        return training.measured_peak(self.step(module))


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().train()


def _images(batch: int, side: int, channels: int = 3) -> Tensor:
    images, _ = models.digits()
    return F.interpolate(images[:batch], size=(side, side), mode="bilinear").repeat(1, channels, 1, 1)


def _labels(batch: int) -> Tensor:
    return models.digits()[1][:batch]


def _tokens(batch: int, length: int) -> Tensor:
    source = models.text()[: batch * length]
    return source.view(batch, length)


def _classifier(make: Callable[[], nn.Module], batch: int, side: int, *, traced: bool = False) -> Specimen:
    labels = _labels(batch)
    return Specimen(_seeded(make), (_images(batch, side),), lambda logits: F.cross_entropy(logits, labels), traced)


# ----------------------------------------------------------------------------------------------------------------------
# torchvision


def _vision(name: str, batch: int, side: int, **options: Any) -> Callable[[], Specimen]:
    def make() -> Specimen:
        import torchvision

        return _classifier(lambda: getattr(torchvision.models, name)(num_classes=10, **options), batch, side)

    return make


def deeplab() -> Specimen:
    import torchvision

    def make() -> nn.Module:
        return torchvision.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=4, aux_loss=True
        )

    images = _images(2, 65)
    classes = (images[:, 0] * 3.99).long()

    def loss(output: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(output["out"], classes) + 0.5 * F.cross_entropy(output["aux"], classes)

    return Specimen(_seeded(make), (images,), loss)


# ----------------------------------------------------------------------------------------------------------------------
# transformers


class LanguageModel(nn.Module):
    """A model of the transformers library, trained on the tokens it reads; returns the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss


class Classifier(nn.Module):
    """An encoder of the transformers library; returns the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=tokens, attention_mask=mask, labels=labels).loss


class Translator(nn.Module):
    """An encoder and decoder of the transformers library; returns the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=targets, use_cache=False).loss


def itself(loss: Tensor) -> Tensor:
    return loss


def gpt2(layers: int = 4, width: int = 128, batch: int = 4, length: int = 128) -> Specimen:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=128, n_positions=length, n_embd=width, n_layer=layers, n_head=4)
    config._attn_implementation = "eager"
    module = _seeded(lambda: LanguageModel(GPT2LMHeadModel(config)))
    return Specimen(module, (_tokens(batch, length),), itself, traced=True)


def bert() -> Specimen:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=128, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, num_labels=3
    )
    module = _seeded(lambda: Classifier(BertForSequenceClassification(config)))
    mask = torch.ones(4, 128, dtype=torch.long)
    mask[1, 100:] = 0
    return Specimen(module, (_tokens(4, 128), mask, _labels(4) % 3), itself, traced=True)


def t5() -> Specimen:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=128, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4, decoder_start_token_id=0
    )
    module = _seeded(lambda: Translator(T5ForConditionalGeneration(config)))
    tokens = _tokens(8, 96)
    return Specimen(module, (tokens[:4], tokens[4:, :64].contiguous()), itself, traced=True)


def llama() -> Specimen:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=256,
    )  # fmt: skip
    config._attn_implementation = "eager"
    module = _seeded(lambda: LanguageModel(LlamaForCausalLM(config)))
    return Specimen(module, (_tokens(4, 128),), itself, traced=True)


# ----------------------------------------------------------------------------------------------------------------------
# timm


def _timm(name: str, batch: int, side: int, *, traced: bool = False, **options: Any) -> Callable[[], Specimen]:
    def make() -> Specimen:
        import timm

        return _classifier(
            lambda: timm.create_model(name, pretrained=False, num_classes=10, **options), batch, side, traced=traced
        )

    return make


# ----------------------------------------------------------------------------------------------------------------------
# Written here


class LstmLanguageModel(nn.Module):
    """Embedding, two layers of LSTM, dropout, tied to nothing."""

    def __init__(self, symbols: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, dropout=0.2, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))
        logits = self.head(self.dropout(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def lstm() -> Specimen:
    return Specimen(_seeded(lambda: LstmLanguageModel(128, 128)), (_tokens(16, 96),), itself)


class Vae(nn.Module):
    """Convolutional encoder and decoder around a Gaussian code; returns the loss."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.LeakyReLU(), nn.Flatten(),
        )  # fmt: skip
        self.mean = nn.Linear(64 * 64, code)
        self.log_variance = nn.Linear(64 * 64, code)
        self.widen = nn.Linear(code, 64 * 64)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.BatchNorm2d(32), nn.LeakyReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        image = self.decoder(self.widen(code).view(-1, 64, 8, 8))
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(image, x) + 0.001 * divergence


def vae() -> Specimen:
    return Specimen(_seeded(lambda: Vae(16)), (_images(64, 32, 1),), itself)


class GraphNet(nn.Module):
    """Messages along the edges of a graph: gather, scatter-add, mean, attention over neighbours by scatter-reduce."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.messages = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(rounds)])
        self.updates = nn.ModuleList([nn.GRUCell(width, width) for _ in range(rounds)])
        self.head = nn.Linear(width, 4)

    def forward(self, features: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        x = torch.relu(self.embed(features))
        for message, update in zip(self.messages, self.updates):  # noqa: B905 -- TorchScript knows no `strict`
            along = torch.relu(message(torch.cat([x.index_select(0, sources), x[targets]], 1)))
            summed = torch.zeros_like(x).index_add(0, targets, along)
            count = torch.zeros(x.size(0), 1, device=x.device).index_add(
                0, targets, torch.ones(along.size(0), 1, device=x.device)
            )
            best = torch.zeros_like(x).scatter_reduce(0, targets.unsqueeze(1).expand_as(along), along, "amax")
            x = update(summed / count.clamp(min=1.0) + best, x)
        return self.head(x)


def graph() -> Specimen:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(800, 8, generator=generator)
    edges = torch.randint(800, (2, 4000), generator=generator)
    labels = torch.randint(4, (800,), generator=generator)
    module = _seeded(lambda: GraphNet(64, 3))
    return Specimen(module, (features, edges[0].clone(), edges[1].clone()), lambda out: F.cross_entropy(out, labels))


class MixedNet(nn.Module):
    """Convolution, attention, norm and a classifier: casts of every kind under autocast."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(2)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2)]
        )
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for qkv, mlp in zip(self.qkv, self.mlp):  # noqa: B905 -- TorchScript knows no `strict`
            q, k, v = qkv(F.layer_norm(x, [x.size(2)])).chunk(3, -1)
            x = x + self.dropout(torch.softmax(q @ k.transpose(1, 2) / x.size(2) ** 0.5, -1)) @ v
            x = x + self.dropout(mlp(F.layer_norm(x, [x.size(2)])))
        return self.head(x.mean(1))


def mixed() -> Specimen:
    specimen = _classifier(lambda: MixedNet(64), 16, 64)
    return specimen._replace(autocast=torch.bfloat16)


class MlpWithLoss(nn.Module):
    """The MLP's outputs are as wide as its layers, so its loss counts."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(x), targets)


def mlp() -> Specimen:
    workload = models.build("mlp", "small")
    inputs, targets = workload.make_batch(0)
    return Specimen(MlpWithLoss(workload.module), (*inputs, targets), itself)


def _of(name: str, size: str = "small", **overrides: float) -> Callable[[], Specimen]:
    """A workload of models.py."""

    def make() -> Specimen:
        workload = models.build(name, size, **overrides)
        inputs, targets = workload.make_batch(0)
        return Specimen(workload.module, inputs, lambda output: workload.loss(output, targets))

    return make


ZOO: dict[str, Callable[[], Specimen]] = {
    "resnet50": _vision("resnet50", 4, 64),
    "mobilenet_v3": _vision("mobilenet_v3_large", 4, 64),
    "efficientnet_b0": _vision("efficientnet_b0", 4, 64),
    "convnext_tiny": _vision("convnext_tiny", 4, 64),
    "vit_b_16": _vision("vit_b_16", 2, 64, image_size=64),
    "swin_t": _vision("swin_t", 2, 64),
    "densenet121": _vision("densenet121", 4, 64),
    "deeplabv3": deeplab,
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "llama": llama,
    "mixer": _timm("mixer_s32_224", 8, 96, img_size=96, traced=True),
    "deit": _timm("deit_tiny_patch16_224", 4, 96, img_size=96, traced=True),
    "regnet": _timm("regnety_002", 4, 64),
    "lstm": lstm,
    "vae": vae,
    "graph": graph,
    "mixed": mixed,
    "resnet18": _of("resnet18"),
    "gpt": _of("gpt"),
    "unet": _of("unet"),
    "mlp": mlp,
    "encoder": _of("encoder"),
    "uneven": _of("uneven"),
}
"""By name."""
