"""What Python code around a model does with it: it works with a rewritten module as with a scripted one."""

import pickle

import pytest
import recals
import torch
from support import features, rewrite
from torch import Tensor, nn

INPUTS = (features(),)


class Built(nn.Module):
    """Containers, a method that is left to Python, and one that is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.heads = nn.ModuleDict({"even": nn.Sequential(nn.Tanh(), nn.Linear(24, 8))})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return self.heads["even"](x)

    @torch.jit.ignore
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @torch.jit.export
    def head(self, x: Tensor) -> Tensor:
        return self.heads["even"](x)


@pytest.mark.smoke
@pytest.mark.parametrize("way", ["optimize", "restore", "passes"])
def test_containers_and_python_methods(way: str) -> None:
    module = Built()
    scripted = torch.jit.script(module)
    if way == "passes":
        planned = recals.passes.plan(recals.passes.analyse(scripted, INPUTS), "min")
        made = recals.passes.lower(scripted, planned)
    else:
        made = rewrite(scripted, INPUTS)
        if way == "restore":
            made = recals.restore(made)
    assert len(made.layers) == 3
    assert [layer.weight.data_ptr() for layer in made.layers] == [layer.weight.data_ptr() for layer in module.layers]
    assert made.heads["even"][1].bias is module.heads["even"][1].bias
    assert "even" in made.heads
    assert made.size() == module.size()
    assert made.size.__self__ is made
    assert torch.equal(made.head(INPUTS[0]), module.head(INPUTS[0]))


def test_a_container_itself() -> None:
    module = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 8))
    budgeted = rewrite(module, INPUTS)
    assert len(budgeted) == 3
    assert budgeted[2].weight is module[2].weight
    assert [type(layer).__name__ for layer in budgeted] == ["Linear", "Tanh", "Linear"]


def test_modes_reach_what_runs() -> None:
    """`.train()` and `.eval()` of a rewritten module, of its submodules, and of the module that it was made from."""
    scripted = torch.jit.script(Built())
    budgeted = rewrite(scripted, INPUTS)
    budgeted.eval()
    assert not any(flag for _, flag in modes(budgeted))
    budgeted.layers.train()
    assert dict(modes(budgeted))["layers.1"]
    assert not dict(modes(budgeted))["heads"]


def modes(module: torch.jit.ScriptModule) -> list[tuple[str, bool]]:
    """The flags that TorchScript reads."""
    return [(name, submodule._c.getattr("training")) for name, submodule in module.named_modules()]


def test_errors_of_torch_keep_their_type() -> None:
    """What torch's own bindings throw is none of Recals' errors, though the package is loaded."""
    with pytest.raises(RuntimeError, match="__getstate__") as caught:
        pickle.dumps(torch.jit.script(nn.Linear(2, 2)))
    assert not isinstance(caught.value, recals.RecalsError)
