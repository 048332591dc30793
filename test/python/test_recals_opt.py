"""recals-opt in a process of its own: the plan of the Python API, files that train elsewhere, exit codes, whole files.

What it prints, and the errors of each stage, are goldens (test/golden).
"""

import itertools
import json
import os
import random
import re
import resource
import signal
import stat
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import recals
import torch
import training
from command import COMMAND, failure, inputs_of, recals_opt, spec_of
from conftest import ROOT
from support import assert_same, features, net, step
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
INPUT = inputs_of((features(),))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small plain module as a file."""
    path = tmp_path_factory.mktemp("opt") / "net.pt"
    torch.jit.script(net()).save(path)
    return path


@pytest.fixture(scope="module")
def rewritten(saved: Path) -> Path:
    """The same at 60 %."""
    path = saved.with_name("small.pt")
    recals_opt(saved, *INPUT, "--budget=60%", "-o", path)
    return path


# ----------------------------------------------------------------------------------------------------------------------
# Files that train, and their plans; the models of examples/zoo.py are in test_zoo.py


@pytest.mark.smoke
def test_rewritten_file_trains(saved: Path, rewritten: Path) -> None:
    plain = net()
    module = torch.jit.load(rewritten)
    for trainee in (plain, module):
        training.prepare_gradients(trainee)
    assert_same(step(plain, (features(),)), step(module, (features(),)))


def test_plan_stands_in_the_extra_files(rewritten: Path) -> None:
    extra = {"recals_plan.json": ""}
    module = torch.jit.load(rewritten, _extra_files=extra)
    plan = json.loads(extra["recals_plan.json"])
    assert plan == recals.plan_of(module)
    assert plan["format"] == 1


def test_restore_gives_the_plain_file_back(saved: Path, rewritten: Path, tmp_path: Path) -> None:
    recals_opt(rewritten, "--restore", "-o", tmp_path / "plain.pt")
    restored = torch.jit.load(tmp_path / "plain.pt")
    assert restored.code == torch.jit.load(saved).code
    assert training.differing_state(restored, torch.jit.load(saved)) == []
    assert recals_opt(tmp_path / "plain.pt", *INPUT, "--budget=60%", "--emit=plan").stdout == (
        recals_opt(rewritten, "--emit=plan").stdout
    )


def test_rewriting_again_plans_anew_from_the_plain_module(rewritten: Path) -> None:
    loose = json.loads(recals_opt(rewritten, *INPUT, "--budget=100%", "--emit=plan").stdout)
    assert loose["regions"] == []


def test_stdin_and_stdout(saved: Path, rewritten: Path) -> None:
    done = subprocess.run(
        [COMMAND, "-", *INPUT, "--budget=60%", "--emit=pt"],
        stdin=saved.open("rb"),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert zipfile.is_zipfile(rewritten)
    path = rewritten.with_name("piped.pt")
    path.write_bytes(done.stdout)
    assert recals_opt(path, "--emit=plan").stdout == recals_opt(rewritten, "--emit=plan").stdout


def test_installed_script_starts_the_command() -> None:
    script = ROOT / "tools" / "recals-opt" / "recals_opt_script.py"
    done = subprocess.run(
        [sys.executable, script, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == recals_opt("--version").stdout, done.stderr
    assert recals.__version__ in done.stdout


# ----------------------------------------------------------------------------------------------------------------------
# Inputs of every kind


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Many(nn.Module):
    """Arguments of every kind that the command line can give."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(
        self,
        x: Tensor,
        pair: Pair,
        by_name: dict[str, Tensor],
        several: list[Tensor],
        mask: Tensor | None,
        counts: list[int],
        scale: float,
        times: int,
        flag: bool,
        kind: str,
        nested: tuple[Tensor, tuple[int, str]],
        late: float = 0.5,
    ) -> Tensor:
        y = self.linear(x) * scale + late
        if mask is not None:
            y = y * mask
        for _ in range(times):
            y = torch.tanh(self.linear(y + pair.left * pair.right))
        if flag:
            y = torch.relu(y + by_name["a"])
        if kind == 'say "yes"':
            y = torch.sigmoid(y)
        for item in several:
            y = torch.tanh(y * item)
        return (y * nested[0]).sum(0) * counts[1] * nested[1][0]


MANY: tuple[Any, ...] = (
    torch.ones(32, 16),
    Pair(torch.ones(32, 16), torch.ones(16)),
    {"a": torch.ones(32, 16), "b": torch.ones(1)},
    [torch.ones(32, 16), torch.ones(32, 1)],
    None,
    [1, 2],
    2.0,
    3,
    True,
    'say "yes"',
    (torch.ones(32, 16).t().contiguous().t(), (-3, "\\")),
)


@pytest.mark.parametrize("mask", [None, torch.ones(32, 16), torch.ones(16, requires_grad=True)], ids=spec_of)
def test_arguments_of_every_kind_plan_as_in_python(tmp_path: Path, mask: Tensor | None) -> None:
    inputs = (*MANY[:4], mask, *MANY[5:])
    path = tmp_path / "many.pt"
    torch.jit.script(Many()).save(path)
    expected = recals.optimize(torch.jit.load(path), inputs, "80%").recals_plan
    assert recals_opt(path, *inputs_of(inputs), "--budget=80%", "--emit=plan").stdout == expected
    out = tmp_path / "out.pt"
    recals_opt(path, *inputs_of(inputs), "--budget=80%", "-o", out)
    # What the file says that it was planned for is read back.
    assert "within the budget" in recals_opt(out, "--check").stdout


def test_inputs_by_name_in_any_order(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "many.pt"
    torch.jit.script(Many()).save(path)
    names = ["x", "pair", "by_name", "several", "mask", "counts", "scale", "times", "flag", "kind", "nested"]
    named = [f"--input={name}={spec_of(value)}" for name, value in zip(names, MANY, strict=True)]
    first = recals_opt(path, *named, "--budget=80%", "--emit=plan").stdout
    assert recals_opt(path, *reversed(named), "--budget=80%", "--emit=plan").stdout == first


# ----------------------------------------------------------------------------------------------------------------------
# Does a file meet a budget?


def test_check_tells_by_its_exit_code(saved: Path, rewritten: Path) -> None:
    (device,) = recals.plan_of(torch.jit.load(rewritten))["devices"]
    assert str(device["peak"]) in recals_opt(rewritten, "--check").stdout
    recals_opt(rewritten, "--check", f"--budget={device['peak']}")
    assert "above" in recals_opt(rewritten, "--check", f"--budget={device['peak'] - 1}", expect=3).stdout
    recals_opt(rewritten, "--check", f"--budget=cpu={device['peak'] - 1}", expect=3)
    recals_opt(saved, "--check", *INPUT, f"--budget={device['plain_peak']}")
    recals_opt(saved, "--check", *INPUT, f"--budget={device['plain_peak'] - 1}", expect=3)
    assert "give one with --budget" in failure(saved, "--check", *INPUT, expect=1)


def test_check_sees_that_a_file_in_another_mode_does_not_follow_its_plan(saved: Path, tmp_path: Path) -> None:
    # The plain step without a dropout's mask is at 59 % of the one with it.
    recals_opt(saved, *INPUT, "--budget=50%", "-o", tmp_path / "small.pt")
    module = torch.jit.load(tmp_path / "small.pt")
    module.eval()
    module.save(tmp_path / "eval.pt")
    (device,) = recals.plan_of(module)["devices"]
    done = recals_opt(tmp_path / "eval.pt", "--check", f"--budget={device['peak']}", expect=3)
    assert "above" in done.stdout


# ----------------------------------------------------------------------------------------------------------------------
# What goes wrong


# ----------------------------------------------------------------------------------------------------------------------
# Files for devices that are not here

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
FOR_CUDA = ("--workspace-margin=0", "--budget=90%")


def as_saved_with_a_gpu(source: Path, target: Path, devices: list[str]) -> Path:
    """The archive, its tensors on one device after the other."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/data.pkl"):
                # The first tensor brings the string, the others refer to it: its place in the memo is behind it.
                first = re.search(rb"X\x03\x00\x00\x00cpuq(.)", content, re.DOTALL)
                assert first
                strings = itertools.cycle(b"X%s%s" % (struct.pack("<I", len(d)), d.encode()) for d in devices)
                pieces = re.split(rb"(?<=q.)h" + re.escape(first[1]) + rb"(?=[KMJ])", content, flags=re.DOTALL)
                content = pieces[0].replace(first[0], next(strings) + b"q" + first[1])
                for piece in pieces[1:]:
                    content += next(strings) + piece
            new.writestr(name, content)
    return target


@no_gpu
def test_a_file_from_a_machine_with_a_gpu_is_planned_for_that_gpu(saved: Path, tmp_path: Path) -> None:
    from_gpu = as_saved_with_a_gpu(saved, tmp_path / "gpu.pt", ["cuda:1"])
    done = recals_opt(from_gpu, *INPUT, *FOR_CUDA, "-o", tmp_path / "small.pt")
    assert 'load it with map_location="cuda:1"' in done.stderr
    recals_opt(saved, *INPUT, *FOR_CUDA, "--target-device=cuda:1", "-o", tmp_path / "same.pt")
    plans = [recals_opt(tmp_path / name, "--emit=plan").stdout for name in ("small.pt", "same.pt")]
    assert plans[0] == plans[1]
    assert json.loads(plans[0])["devices"][0]["name"] == "cuda:1"
    # Planned with --target-device or on that machine, it need not be said again.
    checked = recals_opt(tmp_path / "small.pt", "--check", "--workspace-margin=0").stdout
    assert re.match(r"cuda:1: the step peaks at \d+ bytes .*, within the budget", checked)
    plain = recals_opt(
        from_gpu, "--input=" + INPUT[0].removeprefix("--input=").replace("@cpu", "@cuda:1"), "--emit=report"
    )
    assert plain.stdout.startswith("cuda:1: peak ")


@no_gpu
@pytest.mark.parametrize("devices", [["cuda:0", "cuda:1"], ["cpu", "cuda:0"]])
def test_tensors_on_several_devices_need_them(saved: Path, tmp_path: Path, devices: list[str]) -> None:
    path = as_saved_with_a_gpu(saved, tmp_path / "gpus.pt", devices)
    says = failure(path, *INPUT, *FOR_CUDA, "-o", tmp_path / "small.pt", expect=1)
    assert f"its tensors are on {devices[0]} and {devices[1]}" in says
    assert not (tmp_path / "small.pt").exists()


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--budget=8 GBs"], 2, "8 GBs"),
        (["--budget=0"], 2, "is zero"),
        (["--budget=-1"], 2, "is negative"),
        (["--budget=nan"], 2, "nan"),
        (["--budget=101%"], 2, "more than 100%"),
        (["--budget=50%", "--budget=60%"], 2, "every device already"),
        (["--budget=cuda:1=2GiB"], 2, "the step runs on cpu"),
        (["--budget==5"], 2, "a device is expected"),
        (["--budget=1"], 3, "The smallest budget that works is"),
        (["--method=backward"], 1, "no method 'backward'"),
        (["--emit=pt"], 2, "needs a --budget"),
        (["--passes=graph,sizes,plan"], 2, "needs a --budget"),
        (["--passes=graph,nonsense"], 2, "no pass 'nonsense'"),
        (["--passes=sizes"], 1, "put 'graph' before it"),
        (["--print-ir-after=nonsense"], 2, "no pass 'nonsense'"),
        (["--load-library=./nothing.so"], 1, "nothing.so"),
        (["--parameter=w=f32[2]"], 2, "an archive has its own"),
        (["--explain=%nothing", "--budget=100%"], 1, "no value '%nothing'"),
        (["--input=f32[1]"], 1, "one too many"),
        (["--split-input-file"], 2, "takes text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_one_line_and_an_exit_code(
    saved: Path, arguments: list[str], code: int, says: str
) -> None:
    assert says in failure(saved, *INPUT, *arguments, expect=code)


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        ("f32[128,24", 2, "at character 11: ',' or ']' is expected"),
        ("f33[128,24]", 2, "'f33' is no dtype"),
        ("f32", 2, "'[' and sizes are expected"),
        ("f32[128,24]]", 2, "nothing more is expected"),
        ("f32[128,-24]", 2, "a number for sizes"),
        ("f32[99999999999999999999]", 2, "a number for sizes"),
        ("f32[128,24] strides[1]", 2, "as many strides as sizes"),
        ("f32[128,24]+gard", 2, "'+grad' is expected"),
        (" ", 2, "a value is expected"),
        ("-", 2, "a number is expected"),
        ('"text', 2, "the text does not end"),
        ("(" * 100, 2, "nested more than"),
        ("{1 2}", 2, "':' is expected"),
        ("3", 1, "takes a value of type Tensor, not an integer"),
        ("None", 1, "not None"),
        ("(f32[1], 2)", 1, "not a tuple"),
        ("f32[128,24]@gpu", 1, "'gpu' is no device"),
        ("i64[128,24]+grad", 1, "cannot be made"),
        ("f32[4611686018427387904,4]", 1, "cannot be made"),
        ("f32[128,25]", 1, "aten::linear at linear.py"),
        ("i64[128,24]", 1, "dtype"),
        ("fetaures=f32[128,24]", 1, "forward(features: Tensor) has no argument 'fetaures'"),
    ],
)
def test_wrong_inputs_are_named_with_the_place(saved: Path, spec: str, code: int, says: str) -> None:
    assert says in failure(saved, f"--input={spec}", "--budget=50%", expect=code)


def test_missing_and_repeated_inputs(saved: Path) -> None:
    assert "no --input for the argument 'features'" in failure(saved, "--budget=50%", expect=1)
    twice = [f"--input=features={spec_of(features())}"] * 2
    assert "given twice" in failure(saved, *twice, "--budget=50%", expect=2)
    mixed = [twice[0], INPUT[0]]
    assert "cannot follow one with a name" in failure(saved, *mixed, "--budget=50%", expect=2)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x00\x01\x02", "neither a TorchScript archive"),
        (b"not a graph", "neither a TorchScript archive"),
        (b"PK", "damaged"),
        (b"def forward(self, x):\n    return y\n", "undefined value y"),
        (b"def forward(self, x:\n", "expected"),
        (b"graph(%x : Tensor):\n  return (%y)\n", "%y"),
        (b"graph(%x : Tensor):\n  %y : Tensor = aten::nothing(%x)\n  return (%y)\n", "aten::nothing"),
        ("cut", "has no directory"),
        ("flipped", "does not have the checksum"),
        ("state", "holds no TorchScript module"),
        ("folder", "is a folder"),
        ("missing", "No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_files_that_are_none(saved: Path, tmp_path: Path, content: bytes | str, says: str) -> None:
    path = tmp_path / "input"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "cut":
        path.write_bytes(saved.read_bytes()[:-300])
    elif content == "flipped":
        whole = bytearray(saved.read_bytes())
        with zipfile.ZipFile(saved) as archive:
            weights = max(archive.infolist(), key=lambda entry: entry.file_size)
        whole[weights.header_offset + 300] ^= 1
        path.write_bytes(whole)
    elif content == "state":
        torch.save(net().state_dict(), path)
    elif content == "folder":
        path.mkdir()
    out = tmp_path / "out.pt"
    arguments = [] if isinstance(content, bytes) and content.startswith(b"PK") else ["--input=f32[2]"]
    assert says in failure(path, *arguments, "--passes=graph", "-o", out, "--emit=ir", expect=1)
    assert not out.exists()


def test_an_unknown_op_names_the_way_out(tmp_path: Path) -> None:
    source = tmp_path / "module.pt"
    torch.jit.script(net()).save(source)
    changed = tmp_path / "changed.pt"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(changed, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(".py"):
                content = content.replace(b"torch.gelu(", b"ops.elsewhere.gelu(")
            new.writestr(entry.filename, content)
    message = failure(changed, *INPUT, "--budget=50%", expect=1)
    assert "elsewhere::gelu" in message
    assert "--load-library" in message


# ----------------------------------------------------------------------------------------------------------------------
# Whole files or none


def test_output_keeps_permissions_and_links(saved: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "target.pt", tmp_path / "link.pt"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    recals_opt(saved, *INPUT, "--budget=60%", "-o", link)
    assert link.is_symlink()
    assert zipfile.is_zipfile(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    fresh = tmp_path / "fresh.pt"
    recals_opt(saved, *INPUT, "--budget=60%", "-o", fresh, umask=0o027)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh.pt", "link.pt", "target.pt"]


def limit_files_to_a_kilobyte() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


@pytest.mark.parametrize("emit", ["pt", "plan"])
def test_full_disk_leaves_the_old_file(saved: Path, tmp_path: Path, emit: str) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"old")
    arguments = [saved, *INPUT, "--budget=60%", f"--emit={emit}", "-o"]
    message = failure(*arguments, out, expect=1, preexec_fn=limit_files_to_a_kilobyte)
    assert "cannot be written" in message
    assert "No space left" in failure(*arguments, "/dev/full", expect=1)
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([COMMAND, *arguments, "-"], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def test_places_that_cannot_be_written(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for out in (tmp_path / "no" / "such" / "out.pt", tmp_path / "file" / "out.pt", tmp_path):
        assert "cannot be written" in failure(saved, *INPUT, "--budget=60%", "--emit=pt", "-o", out, expect=1)
    recals_opt(saved, *INPUT, "--budget=60%", "--emit=pt", "-o", "/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_killed_at_any_moment_it_leaves_the_old_file_or_the_whole_new_one(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    arguments = [str(part) for part in (COMMAND, saved, *INPUT, "--budget=60%", "-o", out)]
    start = time.monotonic()
    subprocess.run(arguments, check=True, timeout=60)
    length = time.monotonic() - start
    whole = recals_opt(out, "--emit=plan").stdout
    moments = random.Random(0)
    ends = set()
    for attempt in range(16):
        out.write_bytes(b"old")
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        # The last fifth is where it writes.
        time.sleep(length * (moments.uniform(0.8, 1.1) if attempt % 3 else moments.uniform(0, 1)))
        process.send_signal(signal.SIGKILL if attempt % 2 else signal.SIGTERM)
        ends.add(process.wait(timeout=60))
        if out.read_bytes() != b"old":
            assert recals_opt(out, "--emit=plan").stdout == whole
        for left in tmp_path.iterdir():
            # SIGKILL may leave the temporary file, under a name that nobody takes for a result; SIGTERM does not.
            assert left == out or (attempt % 2 and left.name.startswith(".out.pt."))
            if left != out:
                left.unlink()
    assert len(ends) > 1, "all attempts ended alike: nothing was interrupted"


def test_under_nohup_it_goes_on_when_the_terminal_goes(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    arguments = ["nohup", *(str(part) for part in (COMMAND, saved, *INPUT, "--budget=60%", "-o", out))]
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(0.2)  # until nohup has switched the signal off
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.005)
    assert process.returncode == 0
    assert out.exists()


# ----------------------------------------------------------------------------------------------------------------------
# Speed


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(250)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(torch.relu(layer(x)) + x)
        return x


def cpu_seconds(*arguments: Any) -> float:
    """Of processor time: the clock on the wall says more about who else is busy."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    recals_opt(*arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_thousand_nodes_take_less_than_two_seconds(tmp_path: Path) -> None:
    path, out = tmp_path / "deep.pt", tmp_path / "out.pt"
    torch.jit.script(Deep()).save(path)
    assert cpu_seconds(path, "--input=f32[64,16]", "--emit=report") < 2
    recals_opt(path, "--input=f32[64,16]", "--budget=50%", "-o", out)
    assert cpu_seconds(out, "--check") < 2
    assert cpu_seconds(out, "--restore", "-o", tmp_path / "plain.pt") < 2
    os.unlink(out)
