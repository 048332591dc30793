"""Files of every format: those that this library reads train, any other one is refused with what to do about it."""

import re
import zipfile
from pathlib import Path

import pytest
import recals
import torch
from command import failure, recals_opt
from conftest import ROOT
from recals._load import _C
from support import assert_same, step
from torch import Tensor, nn
from training import prepare_gradients

LEGACY = ROOT / "test" / "legacy"
FILES = {int(re.fullmatch(r"format_(\d+)", path.stem)[1]): path for path in LEGACY.glob("format_*.pt")}
OWN: int = _C.FORMAT_VERSION
OLDEST: int = _C.OLDEST_FORMAT_VERSION


class Plain(nn.Module):
    """What source.ts says."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(16, 16))
        self.b = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.dropout(nn.functional.gelu(nn.functional.linear(x, self.w, self.b)), 0.5, True)
        return nn.functional.linear(x, self.w)


def features() -> Tensor:
    return torch.randn(256, 16, generator=torch.Generator().manual_seed(0))


def with_format(file: Path, number: int, out: Path) -> Path:
    """A copy that says it was written in another format."""
    changed = 0
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(".py"):
                content, count = re.subn(rb"(recals\.enter\(.*, )\d+\)", rb"\g<1>%d)" % number, content)
                changed += count
            new.writestr(entry.filename, content)
    assert changed == 1
    return out


@pytest.mark.smoke
def test_there_is_a_file_of_this_format() -> None:
    assert OWN in FILES, f"format {OWN} has no file yet: test/legacy/README.md has the command that makes it"
    assert set(FILES) == set(range(1, OWN + 1)), "files of older formats are kept"


@pytest.mark.smoke
@pytest.mark.parametrize("number", range(OLDEST, OWN + 1))
def test_a_format_that_is_read_trains(number: int) -> None:
    module, plain = torch.jit.load(FILES[number]), Plain()
    values = torch.Generator().manual_seed(1)
    for name, tensor in plain.named_parameters():
        tensor.data.normal_(generator=values)
        dict(module.named_parameters())[name].data.copy_(tensor.data)
    for trainee in (module, plain):
        prepare_gradients(trainee)
    recals.reset_counters()
    assert_same(step(plain, (features(),)), step(module, (features(),)))
    assert recals.counters()["recomputed_nodes"] > 0
    assert "within the budget" in recals_opt(FILES[number], "--check").stdout


@pytest.mark.parametrize("number", range(OLDEST, OWN + 1))
def test_formats_before_the_third_train_under_any_autocast(number: int) -> None:
    module = torch.jit.load(FILES[number])
    prepare_gradients(module)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if number < 3:
            module(features()).sum().backward()
            assert recals.estimate(module, (features(),)).peak["cpu"] > 0
        else:
            with pytest.raises(RuntimeError, match=r"inside the torch\.autocast block"):
                module(features())


@pytest.mark.parametrize("number", sorted({*FILES, 0, OLDEST - 1, OWN + 1} - {*range(OLDEST, OWN + 1)}))
def test_another_format_is_refused_with_the_way_out(number: int, tmp_path: Path) -> None:
    file = FILES.get(number) or with_format(FILES[OWN], number, tmp_path / "other.pt")
    module = torch.jit.load(file)
    says = rf"written in format {number}, but this library reads formats {OLDEST} to {OWN}\. Restore the plain module"
    with pytest.raises(RuntimeError, match=says):
        module(features())
    for arguments in (["--check"], ["--restore", "-o", tmp_path / "out.pt"], ["--emit=plan"]):
        assert re.search(says, failure(file, *arguments, expect=1))
    assert not (tmp_path / "out.pt").exists()
