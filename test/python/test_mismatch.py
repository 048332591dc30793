"""A training step that its plan cannot hold within the budget is not silent: one warning a module, or an error."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import recals
import torch
from command import recals_opt
from support import assert_same, features, net, rewrite, step
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from training import prepare_gradients

INPUTS = (features(),)


@contextmanager
def budget_warnings() -> Iterator[list[str]]:
    """The texts of all BudgetWarnings, whatever filters say; they come in order."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in heard if issubclass(warning.category, recals.BudgetWarning)]


def trained(module: nn.Module, times: int = 1) -> None:
    for _ in range(times):
        module(*INPUTS).sum().backward()


class Scheduled(nn.Module):
    """A drop rate and a temperature that a schedule changes, and a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.last = nn.Linear(96, 8)
        self.rate = 0.25
        self.temperature = 2.0
        self.adapter = "one"

    def forward(self, features: Tensor) -> Tensor:
        x = torch.dropout(torch.tanh(self.first(features)), self.rate, True)
        if self.adapter == "two":
            x = torch.sigmoid(x)
        return self.last(torch.sigmoid(x / self.temperature))


class Remembering(nn.Module):
    """A state that is None before the first step."""

    state: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 96)
        self.last = nn.Linear(96, 8)
        self.state = None

    def forward(self, features: Tensor) -> Tensor:
        x = torch.tanh(self.first(features))
        state = self.state
        if state is not None:
            x = x + state
        self.state = x.detach()
        return self.last(torch.sigmoid(x))


def planned_in_eval() -> nn.Module:
    return rewrite(net().eval(), INPUTS)


def part_in_eval() -> nn.Module:
    module = net()
    module.norm.eval()
    return rewrite(module, INPUTS)


def other_adapter() -> nn.Module:
    module = rewrite(Scheduled(), INPUTS)
    module.adapter = "two"
    return module


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (planned_in_eval, "'norm.training' was False and is True now, and 1 other attribute differs\\."),
        (part_in_eval, "'norm.training' was False and is True now\\."),
        (other_adapter, '\'adapter\' was "one" and is "two" now\\.'),
    ],
    ids=["eval", "part", "adapter"],
)
def test_a_module_in_another_state_warns_once(make: Callable[[], nn.Module], says: str) -> None:
    module = make().train()
    recals.reset_counters()
    with budget_warnings() as heard:
        trained(module, times=3)
    assert len(heard) == 1
    assert recals.counters()["mismatches"] == recals.counters()["plain_calls"] == 3
    with pytest.warns(recals.BudgetWarning, match=says):
        trained(make().train())


def test_a_state_that_was_none_warns_once() -> None:
    module = rewrite(Remembering(), INPUTS)
    with budget_warnings() as heard:
        trained(module, times=3)
    (text,) = heard
    assert "'state' was None and is f32[128, 96]@cpu now" in text
    assert "on_mismatch" in text


def test_without_a_graph_nothing_is_said() -> None:
    module = planned_in_eval().train()
    recals.reset_counters()
    with budget_warnings() as heard:
        with torch.no_grad():
            module(*INPUTS)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        module(*INPUTS)
    assert heard == []
    assert recals.counters()["mismatches"] == 0


def test_in_the_planned_state_nothing_is_said() -> None:
    module = planned_in_eval()
    with budget_warnings() as heard:
        trained(module, times=2)
    assert heard == []
    assert recals.counters()["recomputed_nodes"] + recals.counters()["unpacks"] > 0


def in_another_state(on_mismatch: Any) -> nn.Module:
    module = recals.optimize(torch.jit.script(net().eval()), INPUTS, "min", on_mismatch=on_mismatch)
    return module.train()


def test_on_mismatch_error() -> None:
    module = in_another_state("error")
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"recals: this training step runs without its budget, .*'norm\.training'"
        ):
            trained(module)
    with torch.no_grad():
        module(*INPUTS)


def test_on_mismatch_plain() -> None:
    module = in_another_state("plain")
    with budget_warnings() as heard:
        trained(module)
    assert heard == []


@pytest.mark.parametrize(("on_mismatch", "error"), [("loud", ValueError), (None, TypeError), ("", ValueError)])
def test_on_mismatch_is_one_of_three_words(on_mismatch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="on_mismatch is 'warn', 'error' or 'plain'"):
        in_another_state(on_mismatch)


def test_on_mismatch_is_saved(tmp_path: Path) -> None:
    in_another_state("error").save(tmp_path / "error.pt")
    loaded = torch.jit.load(tmp_path / "error.pt")
    with pytest.raises(RuntimeError, match="without its budget"):
        trained(loaded)
    plain = recals.restore(loaded)
    trained(plain)
    assert not hasattr(plain, "recals_on_mismatch")


def test_recals_opt_takes_it(tmp_path: Path) -> None:
    torch.jit.script(net().eval()).save(tmp_path / "plain.pt")
    out = tmp_path / "error.pt"
    arguments = ("--input=f32[128,24]", "--budget=min", "--on-mismatch=error", "-o", out)
    recals_opt(tmp_path / "plain.pt", *arguments)
    with pytest.raises(RuntimeError, match="without its budget"):
        trained(torch.jit.load(out).train())


def test_gradients_are_right_all_the_same() -> None:
    plain, budgeted = net(), planned_in_eval().train()
    for module in (plain, budgeted):
        prepare_gradients(module)
    with torch.jit.optimized_execution(False), budget_warnings() as heard:
        assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    assert len(heard) == 1


# ----------------------------------------------------------------------------------------------------------------------
# Hooks of the user on saved tensors


def test_hooks_of_the_user_warn_once() -> None:
    plain, budgeted = net(), rewrite(net(), INPUTS)
    for module in (plain, budgeted):
        prepare_gradients(module)
    with budget_warnings() as heard:
        for seed in range(2):
            with save_on_cpu():
                outcomes = [step(module, INPUTS, seed=seed) for module in (plain, budgeted)]
            assert_same(*outcomes)
    (text,) = heard
    assert "save_on_cpu" in text
    with budget_warnings() as heard:
        trained(budgeted)
    assert heard == []


def test_hooks_of_the_user_are_an_error_on_request() -> None:
    module = recals.optimize(torch.jit.script(net()), INPUTS, "50%", on_mismatch="error")
    with save_on_cpu(), pytest.raises(RuntimeError, match="go to other hooks"):
        trained(module)


def test_planning_is_no_business_of_hooks() -> None:
    seen: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    scripted = torch.jit.script(net())
    expected = recals.optimize(scripted, INPUTS, "50%").recals_plan
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        assert recals.optimize(scripted, INPUTS, "50%").recals_plan == expected
    assert seen == []


# ----------------------------------------------------------------------------------------------------------------------
# Traces


def traced(module: nn.Module) -> torch.jit.ScriptModule:
    return torch.jit.trace(copy.deepcopy(module), INPUTS, check_trace=False)


def test_a_trace_in_training_mode_says_that_eval_changes_nothing() -> None:
    with pytest.warns(
        recals.CaptureWarning, match=r"aten::batch_norm of norm and 3 others will train on in an evaluation"
    ):
        recals.optimize(traced(net()), INPUTS, "100%")


def test_a_trace_in_eval_mode_that_is_to_be_trained_says_so() -> None:
    module = traced(net().eval())
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.CaptureWarning)
        recals.optimize(module, INPUTS, "100%")
    with pytest.warns(recals.CaptureWarning, match="traced in evaluation mode, and train\\(\\) changes nothing"):
        recals.optimize(module.train(), INPUTS, "100%")


def test_what_has_no_modes_or_is_scripted_is_not_spoken_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.CaptureWarning)
        recals.optimize(traced(nn.Sequential(nn.Linear(24, 8), nn.LayerNorm(8))), INPUTS, "100%")
        recals.optimize(traced(nn.Sequential(nn.BatchNorm1d(24, track_running_stats=False))), INPUTS, "100%")
        recals.optimize(torch.jit.script(net()), INPUTS, "100%")


def test_a_scripted_embedding_without_its_max_norm_says_so() -> None:
    indices = (torch.arange(8),)
    with pytest.warns(recals.CaptureWarning, match="leaves out what max_norm does in 0"):
        recals.optimize(torch.jit.script(nn.Sequential(nn.Embedding(50, 8, max_norm=1.0))), indices, "100%")
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.CaptureWarning)
        recals.optimize(torch.jit.script(nn.Sequential(nn.Embedding(50, 8))), indices, "100%")


# ----------------------------------------------------------------------------------------------------------------------
# What autograd does not see


def overwritten_input(module: nn.Module, inputs: Tensor) -> None:
    inputs.numpy()[0, 0] += 1.0


def overwritten_weight(module: nn.Module, inputs: Tensor) -> None:
    module.first.weight.data[0, 0] += 1.0


@pytest.mark.parametrize("overwrite", [overwritten_input, overwritten_weight])
def test_debugging_finds_what_was_overwritten(overwrite: Callable[[nn.Module, Tensor], None]) -> None:
    budgeted = rewrite(net(), INPUTS)
    with recals.debug():
        inputs = features()
        loss = budgeted(inputs).sum()
        overwrite(budgeted, inputs)
        with pytest.raises(RuntimeError, match=r"recals: \S+ was overwritten .* but aten::\w+ at \S+:\d+ must read it"):
            loss.backward()
    inputs = features()
    loss = budgeted(inputs).sum()
    overwrite(budgeted, inputs)
    loss.backward()  # nobody looks


def test_debugging_changes_no_bit() -> None:
    plain, budgeted = net(), rewrite(net(), INPUTS)
    for module in (plain, budgeted):
        prepare_gradients(module)
    recals.debug()
    try:
        for seed in range(2):
            assert_same(step(plain, INPUTS, seed=seed), step(budgeted, INPUTS, seed=seed))
    finally:
        recals.debug(False)
