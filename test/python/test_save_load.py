"""A rewritten module is an ordinary module: saved, loaded elsewhere, copied, moved, printed, and turned back."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import recals
import torch
from support import assert_same, features, net, recomputed_nodes, run, scalar, step, twins
from torch import nn
from training import (
    cpu_plan,
    differing,
    differing_gradients,
    differing_state,
    named_gradients,
    named_state,
    prepare_gradients,
    same_bits,
)

HERE = Path(__file__).resolve().parent
INPUTS = (features(),)


def train(module: nn.Module, seeds: range) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for seed in seeds:
        optimizer.zero_grad(set_to_none=False)
        run(module, INPUTS, seed=seed)
        optimizer.step()


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, check=False)


def storages(module: nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in named_state(module)}


def deep_copy(module: nn.Module) -> nn.Module:
    """copy.deepcopy; a scripted module's copied parameters are results of `clone`, here made leaves again."""
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.detach_().requires_grad_()
    prepare_gradients(copied)
    return copied


def reload(module: nn.Module, folder: Path) -> nn.Module:
    path = folder / "module.pt"
    torch.jit.save(module, path)
    return torch.jit.load(path)


@pytest.mark.smoke
@pytest.mark.parametrize("budget", ["tightest", "70%"])
def test_fresh_process_trains_on_with_the_same_bits(tmp_path: Path, budget: str) -> None:
    plain, budgeted = twins(net(), INPUTS, budget)
    train(plain, range(8))
    train(budgeted, range(3))
    path, out = tmp_path / "module.pt", tmp_path / "out.pt"
    torch.jit.save(budgeted, path)
    process = python(str(HERE / "resume.py"), str(path), str(out), "3", "5")
    assert process.returncode == 0, process.stderr
    result = torch.load(out)
    assert differing(dict(named_state(plain)), result["state"]) == []
    assert differing(dict(named_gradients(plain)), result["gradients"]) == []
    assert result["peak"] <= cpu_plan(budgeted)["budget"]
    assert result["recomputed_nodes"] > 0


def test_saving_does_not_change_the_module(tmp_path: Path) -> None:
    plain, budgeted = twins(net(), INPUTS)
    code = budgeted.code
    torch.jit.save(budgeted, tmp_path / "module.pt")
    assert budgeted.code == code
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


def test_loading_twice_and_saving_again(tmp_path: Path) -> None:
    plain, budgeted = twins(net(), INPUTS)
    once = reload(budgeted, tmp_path)
    twice = reload(once, tmp_path)
    for module in (once, twice):
        assert "recals" in module.code
        prepare_gradients(module)
        assert recomputed_nodes(lambda module=module: run(module, INPUTS)) > 0
    run(plain, INPUTS)
    for module in (once, twice):
        assert differing(dict(named_gradients(plain)), dict(named_gradients(module))) == []
        assert differing_state(plain, module) == []


def test_loaded_module_still_knows_its_plan(tmp_path: Path) -> None:
    _, budgeted = twins(net(), INPUTS)
    assert recals.plan_of(reload(budgeted, tmp_path)) == recals.plan_of(budgeted)


def test_loading_without_the_library_names_it(tmp_path: Path) -> None:
    _, budgeted = twins(net(), INPUTS)
    path = tmp_path / "module.pt"
    torch.jit.save(budgeted, path)
    process = python("-c", f"import torch; torch.jit.load({str(path)!r})")
    assert process.returncode != 0
    assert "recals::" in process.stderr


@pytest.mark.smoke
def test_deepcopy_trains_on_its_own() -> None:
    plain, budgeted = twins(net(), INPUTS)
    train(plain, range(2))
    train(budgeted, range(2))
    copied = deep_copy(budgeted)
    assert not set(storages(copied).values()) & set(storages(budgeted).values())
    before = {name: tensor.clone() for name, tensor in named_state(budgeted)}
    train(plain, range(2, 5))
    train(copied, range(2, 5))
    assert differing_state(plain, copied) == []
    assert differing(before, dict(named_state(budgeted))) == []
    train(budgeted, range(2, 5))
    assert differing_state(plain, budgeted) == []


def test_deepcopy_still_recomputes() -> None:
    _, budgeted = twins(net(), INPUTS)
    copied = deep_copy(budgeted)
    expected = recomputed_nodes(lambda: run(budgeted, INPUTS))
    assert recomputed_nodes(lambda: run(copied, INPUTS)) == expected > 0


def test_state_dict_has_the_plain_keys_and_goes_both_ways() -> None:
    plain, budgeted = twins(net(), INPUTS)
    assert list(budgeted.state_dict()) == list(plain.state_dict())
    train(plain, range(3))
    budgeted.load_state_dict(plain.state_dict())
    assert differing_state(plain, budgeted) == []
    train(plain, range(3, 5))
    train(budgeted, range(3, 5))
    fresh = net(seed=7)
    fresh.load_state_dict(budgeted.state_dict())
    assert differing_state(plain, fresh) == []


def test_submodules_keep_their_names() -> None:
    plain, budgeted = twins(net(), INPUTS)
    assert [name for name, _ in budgeted.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in budgeted.named_buffers()] == [name for name, _ in plain.named_buffers()]
    assert {name for name, _ in plain.named_modules()} <= {name for name, _ in budgeted.named_modules()}


def test_to_moves_and_casts() -> None:
    plain, budgeted = twins(net(), INPUTS)
    budgeted.to("cpu")
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))

    plain.to(torch.float64)
    budgeted.to(torch.float64)
    with torch.no_grad():
        plain.eval()
        budgeted.eval()
        assert torch.equal(plain(features().double()), budgeted(features().double()))
        plain.train()
        budgeted.train()

    plain.to(torch.float32)
    budgeted.to(torch.float32)
    prepare_gradients(plain)
    prepare_gradients(budgeted)
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))


@pytest.mark.smoke
def test_printed_code_shows_the_ops() -> None:
    _, budgeted = twins(net(), INPUTS)
    assert "ops.recals." in budgeted.code
    assert "recals::" in str(budgeted.graph)


@pytest.mark.parametrize("source", ["rewritten", "loaded"])
def test_the_step_can_be_called_by_itself(tmp_path: Path, source: str) -> None:
    """By TorchScript's own executor, which profiles the first calls and optimises the later ones."""
    plain, budgeted = twins(net(), INPUTS)
    module = budgeted if source == "rewritten" else reload(budgeted, tmp_path)
    prepare_gradients(module)
    for seed in range(4):
        expected = run(plain, INPUTS, seed=seed)
        torch.manual_seed(seed)
        (output,) = module.recals_forward_step(*INPUTS)
        assert same_bits(expected, output)
        assert recomputed_nodes(scalar(output).backward) > 0
    assert differing_gradients(plain, module) == []


@pytest.mark.smoke
@pytest.mark.parametrize("source", ["rewritten", "loaded"])
def test_restore_gives_the_plain_module_back(tmp_path: Path, source: str) -> None:
    plain, budgeted = twins(net(), INPUTS)
    module = budgeted if source == "rewritten" else reload(budgeted, tmp_path)
    restored = recals.restore(module)
    prepare_gradients(restored)
    assert storages(restored) == storages(module)
    assert "recals" not in restored.code
    assert "recals" not in str(restored.inlined_graph)
    # Op by op, as eager runs: TorchScript's own optimiser can move a bit.
    with torch.jit.optimized_execution(False):
        assert_same(step(plain, INPUTS), step(restored, INPUTS))
        # It takes other shapes in training again.
        other = (features(rows=32),)
        assert_same(step(plain, other), step(restored, other))
    # And it can be rewritten again.
    again = recals.optimize(restored, INPUTS, "80%")
    prepare_gradients(plain)
    prepare_gradients(again)
    assert_same(step(plain, INPUTS), step(again, INPUTS))


def test_restore_leaves_the_rewritten_module_usable() -> None:
    plain, budgeted = twins(net(), INPUTS)
    recals.restore(budgeted)
    assert "recals" in budgeted.code
    assert_same(step(plain, INPUTS), step(budgeted, INPUTS))
    assert recomputed_nodes(lambda: run(budgeted, INPUTS)) > 0


def test_restore_refuses_what_was_never_rewritten() -> None:
    with pytest.raises((recals.RecalsError, ValueError, TypeError)):
        recals.restore(torch.jit.script(net()))
    with pytest.raises((recals.RecalsError, ValueError, TypeError)):
        recals.restore(net())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"not an archive at all", "text"), (None, "truncated")],
    ids=["empty", "text", "truncated"],
)
def test_broken_files_fail_like_plain_ones(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "module.pt"
    if content is None:
        torch.jit.save(twins(net(), INPUTS)[1], path)
        content = path.read_bytes()[:-200]
    path.write_bytes(content)
    with pytest.raises((RuntimeError, ValueError)):
        torch.jit.load(path)
