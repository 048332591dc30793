"""C++ users: find_package(recals) outside the tree, a program that trains a rewritten file, a pass in a library."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import recals
import torch
from command import failure, inputs_of, recals_opt
from conftest import ROOT
from support import features, net
from torch import Tensor, nn

INPUTS = (features(),)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the example's programs, built by CMake from a copy that lies elsewhere."""
    folder = tmp_path_factory.mktemp("cpp")
    shutil.copytree(ROOT / "examples" / "cpp", folder / "source")
    configure = ["cmake", "-S", folder / "source", "-B", folder / "build", "-G", "Ninja"]
    package = [f"-DCMAKE_PREFIX_PATH={recals.cmake_prefix_path}", "-DCMAKE_BUILD_TYPE=Release"]
    for command in ([*configure, *package], ["cmake", "--build", folder / "build"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build"


class Trained(NamedTuple):
    losses: list[str]
    peak: int


def run_train(programs: Path, file: Path, shape: tuple[int, ...]) -> subprocess.CompletedProcess[str]:
    command = [programs / "train", file, ",".join(map(str, shape)), "5"]
    environment = {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def train(programs: Path, file: Path) -> Trained:
    done = run_train(programs, file, INPUTS[0].shape)
    assert done.returncode == 0, done.stderr
    return Trained(re.findall(r"loss (\S+)", done.stdout), int(re.search(r"peak (\d+) bytes", done.stdout)[1]))


@pytest.mark.slow
def test_cpp_program_trains_within_the_budget(programs: Path, tmp_path: Path) -> None:
    plain, small = tmp_path / "net.pt", tmp_path / "small.pt"
    torch.jit.script(net()).save(plain)
    recals_opt(plain, *inputs_of(INPUTS), "--budget=60%", "-o", small)
    (device,) = recals.plan_of(torch.jit.load(small))["devices"]
    trained = train(programs, small)
    assert trained.peak <= device["budget"]
    loose = tmp_path / "loose.pt"
    recals_opt(plain, *inputs_of(INPUTS), "--budget=100%", "-o", loose)
    kept = train(programs, loose)
    assert kept.losses == trained.losses
    assert kept.peak > device["budget"]
    assert float(trained.losses[-1]) < float(trained.losses[0])

    rows, columns = INPUTS[0].shape
    refused = run_train(programs, small, (rows + 1, columns))
    assert (refused.returncode, refused.stdout) == (1, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith("train: recals: the plan was made for inputs")
    missing = run_train(programs, tmp_path / "no.pt", (rows, columns))
    assert missing.returncode == 1
    assert len(missing.stderr.splitlines()) == 1


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * torch.tanh(x)


@pytest.mark.slow
def test_library_with_a_pass(programs: Path, tmp_path: Path) -> None:
    library = programs / "libmerge_equal.so"
    assert "merge-equal" not in recals_opt("--list-passes").stdout
    listed = recals_opt("--list-passes", f"--load-library={library}").stdout
    assert re.search(r"^merge-equal +computes equal values once$", listed, re.MULTILINE)

    file = tmp_path / "twice.pt"
    torch.jit.script(Twice()).save(file)
    step = [file, "--input=f32[8,8]+grad", "--budget=100%"]
    assert recals_opt(*step).stdout.count("aten::tanh(") == 2
    assert recals_opt(*step, f"--load-library={library}").stdout.count("aten::tanh(") == 1
    # Named in a pipeline it stands where it was written, and nowhere else.
    assert recals_opt(*step, f"--load-library={library}", "--passes=graph").stdout.count("aten::tanh(") == 2
    assert recals_opt(*step, f"--load-library={library}", "--passes=graph,merge-equal").stdout.count("aten::tanh(") == 1
    assert "no pass 'merge-equal'" in failure(*step, "--passes=graph,merge-equal", expect=2)

    program = (
        f"import recals, torch; torch.ops.load_library({str(library)!r}); "
        f"module = torch.jit.load({str(file)!r}); x = torch.ones(8, 8, requires_grad=True); "
        "print(str(recals.passes.analyse(module, (x,)).graph).count('aten::tanh('))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "1\n", done.stderr
