"""Analysis is quick, and needs no memory of the model's size."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import recals
import torch
import zoo
from command import recals_opt
from support import resident
from torch import Tensor, nn

pytestmark = pytest.mark.alone

GIB = 2**30


def seconds_of(work: Callable[[], object]) -> float:
    """The best of three: the machine may be busy with other things."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def seconds_to_estimate(captured: torch.jit.ScriptModule, inputs: tuple[Tensor, ...]) -> float:
    return seconds_of(lambda: recals.estimate(captured, inputs))


def test_a_resnet_is_analysed_in_less_than_a_second() -> None:
    torchvision = pytest.importorskip("torchvision")
    captured = torch.jit.script(torchvision.models.resnet50().train())
    assert seconds_to_estimate(captured, (torch.randn(8, 3, 224, 224),)) < 1


def test_twelve_layers_of_gpt2_are_analysed_in_less_than_a_second() -> None:
    pytest.importorskip("transformers")
    specimen = zoo.gpt2(layers=12, width=768, batch=2, length=256)
    assert seconds_to_estimate(specimen.captured(), specimen.inputs) < 1


class Long(nn.Module):
    """Five nodes a layer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1), nn.LayerNorm(8)) for _ in range(layers)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.sum()


def test_ten_thousand_nodes_are_analysed_in_less_than_ten_seconds() -> None:
    captured = torch.jit.script(Long(2000))
    start = time.perf_counter()
    report = recals.estimate(captured, (torch.randn(16, 8),))
    assert time.perf_counter() - start < 10
    assert report.held["cpu"] >= 2000 * 4 * 16 * 8 * 4


def test_a_thousand_nodes_are_loaded_in_less_than_two_seconds(tmp_path: Path) -> None:
    """By the command, which starts as a process, and by torch with the first step, which takes the plan apart."""
    plain, small = tmp_path / "plain.pt", tmp_path / "small.pt"
    torch.jit.script(Long(200)).save(plain)

    def read() -> None:
        assert recals_opt(plain, "--input=f32[16,8]", "--passes=graph", "--emit=ir").stdout.count(" = ") > 1000

    def train() -> None:
        torch.jit.load(small)(torch.randn(16, 8)).backward()

    recals_opt(plain, "--input=f32[16,8]", "--budget=60%", "-o", small)
    assert seconds_of(read) < 2
    assert seconds_of(train) < 2


def test_a_decoder_of_seven_billion_parameters_is_analysed_in_place() -> None:
    """Neither its 25 GiB of parameters nor its more than 50 GB of activations exist."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        max_position_embeddings=2048,
    )  # fmt: skip
    with torch.device("meta"):
        module = zoo.LanguageModel(transformers.LlamaForCausalLM(config)).train()
    assert sum(parameter.numel() for parameter in module.parameters()) > 6.5e9
    tokens = torch.zeros(3, 2048, dtype=torch.long, device="meta")
    traced = torch.jit.trace(module, (tokens,), check_trace=False, strict=False)
    recals.estimate(torch.jit.script(Long(1)), (torch.randn(16, 8),))  # what is loaded once does not count
    before = resident()
    report = recals.estimate(traced, (tokens,))
    assert resident() - before < 100e6
    assert report.peak["cpu"] > 50e9
    # Each of the 32 layers keeps at least three rows of 11008 floats a token: the MLP's gate, other half and product.
    assert report.held["cpu"] > 32 * 3 * 11008 * 4 * tokens.numel()
