"""Passes of users in the pipeline: where they stand, what they may do, what happens when they do something else."""

from collections.abc import Callable, Iterator

import pytest
import recals
import torch
from support import features, net
from torch import Tensor, nn

INPUTS = (features(),)


@pytest.fixture(autouse=True)
def clean_up() -> Iterator[None]:
    """No pass of a test is left for the next one."""
    before = list(recals.passes.available())
    yield
    for name in reversed(list(recals.passes.available())):
        if name not in before:
            recals.unregister_pass(name)


class Twice(nn.Module):
    """Computes the same tanh twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.sigmoid(torch.tanh(y)) * torch.exp(torch.tanh(y))


def kinds(graph: torch._C.Graph) -> list[str]:
    return [node.kind() for node in graph.nodes()]


def merge_tanh(graph: torch._C.Graph) -> None:
    torch._C._jit_pass_cse(graph)


def test_a_pass_after_graph_changes_what_is_planned() -> None:
    eager = Twice()
    module = torch.jit.script(eager)
    before = recals.estimate(module, INPUTS)
    recals.register_pass("merge", merge_tanh)
    after = recals.estimate(module, INPUTS)
    # One tanh less, saved for the backward: 128 rows of 256 floats.
    assert before.held["cpu"] - after.held["cpu"] == 128 * 256 * 4
    assert kinds(recals.passes.analyse(module, INPUTS).graph).count("aten::tanh") == 1
    rewritten = recals.optimize(module, INPUTS, "90%")
    output = rewritten(*INPUTS)
    output.sum().backward()
    assert torch.equal(output, eager(*INPUTS))


def test_passes_run_where_they_were_put_and_in_the_order_they_were_added() -> None:
    seen: list[tuple[str, bool]] = []

    def note(name: str) -> Callable[[torch._C.Graph], None]:
        return lambda graph: seen.append((name, "recals::region" in kinds(graph)))

    for name, after in [
        ("late", "boundaries"), ("early", "graph"), ("second", "early"), ("sized", "sizes"), ("planned", "plan"),
        ("first", "early"), ("last", "late"),
    ]:  # fmt: skip
        recals.register_pass(name, note(name), after=after)
    recals.optimize(torch.jit.script(net()), INPUTS, "70%")
    assert seen == [
        ("early", False), ("second", False), ("first", False), ("sized", False), ("planned", False),
        ("late", True), ("last", True),
    ]  # fmt: skip
    seen.clear()
    analysis = recals.passes.analyse(torch.jit.script(net()), INPUTS)
    assert [name for name, _ in seen] == ["early", "second", "first", "sized"]
    recals.passes.plan(analysis, "70%")
    assert [name for name, _ in seen[4:]] == ["planned", "late", "last"]


def test_a_pass_between_sizes_and_boundaries_must_not_change_the_graph() -> None:
    recals.register_pass("merge", merge_tanh, after="sizes")
    recals.optimize(torch.jit.script(net()), INPUTS, "70%")  # nothing to merge, nothing changed
    with pytest.raises(recals.RecalsError, match="changed after 'sizes'"):
        recals.optimize(torch.jit.script(Twice()), INPUTS, "90%")


def hold_more(graph: torch._C.Graph) -> None:
    """Ten more copies of the result, which autograd saves."""
    output = next(iter(graph.outputs()))
    value = output
    for _ in range(10):
        node = graph.create("aten::exp", [value], 1)
        graph.insertNode(node)
        value = node.output()
    graph.eraseOutput(0)
    graph.registerOutput(value)


def test_a_pass_after_boundaries_is_held_to_the_budget() -> None:
    recals.register_pass("more", hold_more, after="boundaries")
    with pytest.raises(recals.BudgetError, match=r"a pass changed the planned graph.*Let the pass run after 'graph'"):
        recals.optimize(torch.jit.script(Twice()), INPUTS, "100%")


def remove_everything(graph: torch._C.Graph) -> None:
    graph.eraseOutput(0)


def add_a_loop(graph: torch._C.Graph) -> None:
    node = graph.create("prim::If", [graph.insertConstant(True)], 0)
    node.addBlock()
    node.addBlock()
    graph.insertNode(node)


def fail(graph: torch._C.Graph) -> None:
    raise KeyError("what the user's code says")


@pytest.mark.parametrize("after", ["graph", "boundaries"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (remove_everything, "'bad' changed the inputs or outputs"),
        (add_a_loop, r"F2: prim::If.* has blocks \(after the pass 'bad'\)"),
        (fail, r"the pass 'bad' failed: KeyError: .*what the user's code says"),
    ],
    ids=["outputs", "contract", "exception"],
)
def test_a_pass_that_breaks_something_is_named(
    function: Callable[[torch._C.Graph], None], message: str, after: str
) -> None:
    module = torch.jit.script(net())
    code = module.code
    recals.register_pass("bad", function, after=after)
    with pytest.raises(recals.RecalsError, match=message):
        recals.optimize(module, INPUTS, "70%")
    recals.unregister_pass("bad")
    assert module.code == code
    assert "recals" in recals.optimize(module, INPUTS, "70%").code


@pytest.mark.smoke
def test_names_and_places_are_checked() -> None:
    recals.register_pass("mine", merge_tanh)
    assert "mine" in recals.passes.available()
    for name, after, message in [
        ("mine", "graph", "already"),
        ("not a name", "graph", "letters"),
        ("", "graph", "letters"),
        ("other", "lower", "cannot stand after 'lower'"),
        ("other", "other", "cannot stand after 'other'"),
    ]:
        with pytest.raises(ValueError, match=message):
            recals.register_pass(name, merge_tanh, after=after)
    recals.register_pass("behind", merge_tanh, after="mine")
    with pytest.raises(ValueError, match="'behind' stands after 'mine'"):
        recals.unregister_pass("mine")
    recals.unregister_pass("behind")
    recals.unregister_pass("mine")
    with pytest.raises(ValueError, match="no pass 'mine'"):
        recals.unregister_pass("mine")


def ops_of(module: nn.Module) -> list[str]:
    """Every op that a call without gradients dispatches, once TorchScript has optimised it."""
    with torch.no_grad():
        for _ in range(3):
            module(*INPUTS)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            module(*INPUTS)
    return [event.name for event in profile.events() if "::" in event.name]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_inference_of_a_rewritten_module_runs_the_ops_of_the_plain_one(training: bool) -> None:
    plain = torch.jit.script(net()).train(training)
    rewritten = recals.optimize(torch.jit.script(net()), INPUTS, "60%").train(training)
    ops = ops_of(rewritten)
    # Two ops more: one asks whether there is something to plan for, the other calls the plain method.
    for ours in ("recals::enter", "recals::plain"):
        assert ops.count(ours) == 1
        ops.remove(ours)
    assert ops == ops_of(plain)
