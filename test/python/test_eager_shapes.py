"""Eager modules whose inputs change their shapes: a plan for each, the budget at each, and nothing plain in silence."""

import threading

import models
import pytest
import recals
import torch
import torch.nn.functional as F
from eager import run, twins
from torch import Tensor, nn
from training import cpu_of

pytestmark = pytest.mark.usefixtures("forget_compiled")


class Sequence(nn.Module):
    """Attention over sequences of any length, in batches of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(64, 32)
        self.wide = nn.ModuleList([nn.Linear(32, 128) for _ in range(4)])
        self.narrow = nn.ModuleList([nn.Linear(128, 32) for _ in range(4)])
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 64)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = x + self.dropout(narrow(F.gelu(wide(x))))
        q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = F.softmax(q @ k.transpose(-1, -2) * (x.shape[-1] // 4) ** -0.5, -1) @ v
        y = self.dropout(F.gelu(y.transpose(1, 2).reshape(x.shape)))
        return F.cross_entropy(self.out(y).flatten(0, 1), tokens.flatten())


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(64, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))


def test_every_shape_is_within_its_budget_to_the_bit() -> None:
    pair = twins(Sequence(), budget="60%")
    shapes = [(1 + number % 3, 24 + 8 * number) for number in range(12)]
    for batch, length in shapes:
        pair.step(tokens(batch, length))
        plain, ours = pair.step(tokens(batch, length))
        assert ours.peak <= 0.6 * plain.peak
    assert len(pair.plans) == len(shapes)
    assert pair.warnings == []


def test_plans_come_back_with_their_shapes() -> None:
    pair = twins(Sequence(), budget="60%")
    counts = []
    for _ in range(3):
        for length in (32, 40):
            pair.step(tokens(2, length))
        counts.append(len(pair.plans))
    assert counts[1] == counts[2] <= 3, "torch's second graph is of both shapes"


def test_the_oldest_plan_goes_first() -> None:
    pair = twins(Sequence(), budget="60%", max_plans=2)
    for length in (32, 40, 48, 56, 64):
        pair.step(tokens(2, length))
    graphs = {plan["graph"] for plan in pair.plans}
    assert all(sum(plan["graph"] == graph for plan in pair.plans) <= 2 for graph in graphs)
    assert any("i64[2, 64]" in plan["signature"] for plan in pair.plans)
    assert not any("i64[2, 48]" in plan["signature"] for plan in pair.plans)


def test_a_new_shape_may_be_an_error() -> None:
    pair = twins(Sequence(), on_new_shape="error", budget="60%")
    pair.step(tokens(2, 32))
    with pytest.raises(recals.RecalsError, match=r"not planned for.*on_new_shape='plan'"):
        pair.ours(tokens(2, 40))
    pair.step(tokens(2, 32))


def test_or_it_may_run_plain_which_is_said_once() -> None:
    pair = twins(Sequence(), on_new_shape="plain", budget="60%")
    pair.steps(tokens(2, 32))
    for length in (40, 48, 40):
        pair.step(tokens(2, length))
    (text,) = pair.warnings
    assert "outside of the budget" in text
    assert len(pair.plans) == 1


def test_the_limit_of_torch_is_an_error_not_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that the model branches on differs in each call, so torch compiles it anew."""
    from recals.eager import dynamo

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)
            self.mode = "0"

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(F.gelu(self.layer(x))).sum() * int(self.mode)

    monkeypatch.setitem(dynamo._WANTED, "recompile_limit", 3)
    pair = twins(Branching(), budget="min")
    for number in range(3):
        pair.plain.mode = pair.ours.mode = str(number)
        pair.step(torch.randn(8, 16))
    pair.ours.mode = "3"
    with pytest.raises(recals.RecalsError, match="compiled too often"):
        pair.ours(torch.randn(8, 16))


def test_autocast_around_the_call_has_a_plan_of_its_own() -> None:
    pair = twins(Sequence(), budget="70%")
    pair.steps(tokens(2, 64))
    plain, ours = pair.steps(tokens(2, 64), autocast=torch.bfloat16)
    assert ours.peak <= 0.7 * plain.peak or ours.peak <= max(cpu_of(plan)["budget"] for plan in pair.plans)
    assert len(pair.plans) == 2
    assert any("autocast" in plan["signature"] for plan in pair.plans)
    pair.step(tokens(2, 64))
    assert len(pair.plans) == 2


def test_a_switch_of_a_backend_has_a_plan_of_its_own() -> None:
    pair = twins(Sequence(), budget="70%")
    pair.steps(tokens(2, 64))
    with torch.backends.mkldnn.flags(enabled=False):
        pair.steps(tokens(2, 64))
    assert len(pair.plans) == 2


def test_threads_share_the_plans() -> None:
    torch.manual_seed(0)
    model = Sequence()
    model.dropout.p = 0.0  # the random stream is all threads'
    pair = twins(model, budget="60%")
    expected = [run(pair.plain, tokens(2, length)) for length in (32, 48)]
    pair.ours(tokens(2, 32)), pair.ours(tokens(2, 48))
    losses: dict[int, Tensor] = {}
    limit = torch._dynamo.config.recompile_limit

    def work(number: int) -> None:
        for _ in range(5):
            losses[number] = pair.ours(tokens(2, 32 + 16 * (number % 2))).detach()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(losses[number], expected[number % 2].loss) for number in range(4))
    assert len(losses) == 4
    assert torch._dynamo.config.recompile_limit == limit, "torch's settings are as they were"


@pytest.mark.slow
def test_fifty_shapes_of_a_gpt() -> None:
    workload = models.build("gpt", "small", blocks=2)
    (text, targets), _ = workload.make_batch(0)
    pair = twins(workload.module)
    for number in range(50):
        batch, length = 1 + number % 4, 128 - 2 * number
        inputs = text[:batch, :length].contiguous(), targets[:batch, :length].contiguous()
        pair.step(*inputs)
        plain, ours = pair.step(*inputs)
        assert ours.peak <= 0.5 * plain.peak
    assert pair.warnings == []
