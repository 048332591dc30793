"""The check for machines with a GPU, rehearsed on the CPU: what it carries along is all that it needs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu_check") / "check"
    script = ROOT / "benchmarks" / "gpu_check.py"
    done = run(script, "prepare", folder, "--device", "cpu", "--size", "small", "--workloads", "mlp")
    assert done.returncode == 0, done.stderr
    return folder


def rehearse(folder: Path) -> subprocess.CompletedProcess[str]:
    """Without Recals in reach, in the process that the script runs in."""
    (folder / "recals.py").write_text("raise ImportError('this machine has no recals')")
    return run(folder / "gpu_check.py", "run", folder, "--device", "cpu", "--pairs", "1", PYTHONPATH=str(folder))


def test_rehearsal(folder: Path) -> None:
    done = rehearse(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((folder / "result.json").read_text())["rows"]
    assert [row["what"] for row in rows] == ["plain", "checkpoint", "recals 75%", "recals 50%", "recals 25%"]
    assert all(row["same_gradients"] and row["same_stream"] for row in rows)
    assert rows[-1]["peak"] < rows[0]["peak"] / 3


def test_a_peak_above_its_prediction_is_a_fault(folder: Path) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["plans"] = manifest["plans"][:1]
    manifest["plans"][0]["predicted"] = 1000
    file.write_text(json.dumps(manifest))
    done = rehearse(folder)
    assert done.returncode == 1
    assert "above the prediction" in done.stdout


def test_a_folder_of_another_device_is_refused(folder: Path) -> None:
    done = run(folder / "gpu_check.py", "run", folder, "--device", "cuda:0")
    assert done.returncode == 1
    assert "the plans are for cpu" in done.stderr
