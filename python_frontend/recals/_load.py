"""Loads the extension, or says what is wrong with the installation."""

from __future__ import annotations

from pathlib import Path

import torch

from recals import _build_info

__version__ = _build_info.VERSION


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


if _minor(torch.__version__) != _minor(_build_info.TORCH_VERSION):
    raise ImportError(
        f"recals was built for torch {_build_info.TORCH_VERSION}, but torch {torch.__version__} is installed. LibTorch "
        "keeps no binary interface between minor versions: install recals again in this environment (./dev build in a "
        "clone, or pip install --no-build-isolation --force-reinstall --no-deps recals)."
    )

from recals import _C  # noqa: E402  (after the check)

_cuda_part = Path(__file__).parent / "lib" / "librecals_cuda.so"
if torch.version.cuda is not None and _cuda_part.exists():
    # It registers itself. Without it (built where there was no CUDA) random states go through ATen.
    torch.ops.load_library(_cuda_part)

__all__ = ["_C", "__version__"]
