"""A step on the device beside its prediction: before training, and in the first step of a plan."""

import copy
import warnings

import pytest
import recals
import torch
import torch.nn.functional as F
from command import recals_opt
from support import features, net, rewrite
from torch import Tensor, nn
from training import cloned, differing, named_gradients, named_state, prepare_gradients


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).view(2, 32, 3, 1, 16).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).square().mean()


def test_a_plan_holds_what_was_predicted() -> None:
    module = rewrite(net(), (features(),), "60%")
    found = recals.verify(module, features())
    assert found.holds
    assert found.differences == []
    assert 0 < found.measured["cpu"] <= found.predicted["cpu"] <= found.measured["cpu"] * 1.05
    assert f"predicted {found.predicted['cpu']} bytes, measured {found.measured['cpu']}" in str(found)


def test_a_plain_step_too_and_with_a_loss_of_its_own() -> None:
    module = torch.jit.script(net())
    target = torch.randint(8, (128,))
    found = recals.verify(module, features(), loss=lambda out: F.cross_entropy(out, target))
    assert found.holds
    assert found.predicted["cpu"] <= found.measured["cpu"] + 256


def test_nothing_is_changed() -> None:
    module = rewrite(net(), (features(),), "60%")
    prepare_gradients(module)
    state, gradients = cloned(named_state(module)), cloned(named_gradients(module))
    random = torch.get_rng_state()
    recals.verify(module, features())
    assert differing(state, dict(named_state(module))) == []
    assert differing(gradients, dict(named_gradients(module))) == []
    assert torch.equal(random, torch.get_rng_state())


def planned_for_other_kernels() -> torch.jit.ScriptModule:
    """A plan whose facts are those of another step: one node saved half as much."""
    module = rewrite(net(), (features(),), "75%")
    lines = module.recals_facts.splitlines()
    node = next(i for i, line in enumerate(lines) if len(line.split()) > 2)
    number, name, size, *rest = lines[node].split()
    lines[node] = " ".join([number, name, str(int(size) // 2), *rest])
    module.recals_facts = "\n".join(lines)
    return module


def test_the_first_step_says_what_differs_once() -> None:
    module = planned_for_other_kernels()
    with pytest.warns(recals.BudgetWarning, match=r"keeps more for its backward .* bytes, where the plan has"):
        module(features()).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.BudgetWarning)
        module(features()).sum().backward()


def test_it_is_an_error_on_request() -> None:
    found = recals.verify(planned_for_other_kernels(), features(), on_mismatch="plain")
    assert not found.holds
    assert len(found.differences) == 1
    assert "functional.py" in found.differences[0]
    with pytest.raises(recals.RecalsError, match="holds more than was predicted"):
        recals.verify(planned_for_other_kernels(), features(), on_mismatch="error")
    with pytest.warns(recals.BudgetWarning, match="holds more than was predicted"):
        recals.verify(planned_for_other_kernels(), features())


def test_ordinary_first_steps_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.BudgetWarning)
        for budget in ("100%", "75%", "tightest"):
            rewrite(net(), (features(),), budget)(features()).sum().backward()
        x = torch.randn(2, 32, 16)
        attention = recals.optimize(torch.jit.script(Attention()), (x,), "100%")
        attention(x).backward()


def test_fewer_slots_are_no_difference() -> None:
    module = rewrite(net(), (features(),), "75%")
    for parameter in list(module.parameters())[:4]:
        parameter.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", recals.BudgetWarning)
        module(features()).sum().backward()


def test_what_is_on_meta_cannot_be_run() -> None:
    module = torch.jit.script(copy.deepcopy(net()).to("meta"))
    with pytest.raises(recals.RecalsError, match="on meta, without data"):
        recals.verify(module, features().to("meta"))


def test_the_command_verifies_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    module = rewrite(net(), (features(),), "60%")
    module.save(tmp_path / "small.pt")
    done = recals_opt(tmp_path / "small.pt", "--verify")
    assert "cpu: predicted" in done.stdout
