"""What users pass, brought into the form that the extension takes. What the extension checks is not checked here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.checkpoint import CheckpointPolicy

from recals._load import _C
from recals.loss import Loss, loss_for_analysis

Budget = int | str | Mapping[str, int | str]
"""Bytes, "512MiB", "50%" of the plain step's own peak, "min", "auto", or one of those for each device by name."""

CostModel = str | os.PathLike[str]
"""Where times come from: "built-in", "calibrated", "profile", or the path of a file (docs/cost-model.md)."""

GpuDevices: TypeAlias = str | int | Iterable[int] | torch.Tensor
"""Devices by index, "all" or "none"."""

Scratch: TypeAlias = Literal["measured", "rules"]
"""Where the scratch memory of the CPU's kernels comes from (docs/memory-model.md)."""

OnMismatch: TypeAlias = Literal["warn", "error", "plain"]
"""What a training step does that its plan cannot hold within the budget."""

Device: TypeAlias = str | torch.device
"""A device by name, "cuda:0"."""

Policy: TypeAlias = CheckpointPolicy | str
"""What is said about a saved tensor: a member of torch's enum, or its name in lower case, "must_save"."""

Pins: TypeAlias = Mapping[str, Policy] | Callable[[str, str, str, int], Policy | None]
"""From patterns to policies, or a function that is asked for the policy of each storage."""


def cost_model_text(cost_model: CostModel | None) -> str:
    """As the extension takes it; "" lets RECALS_COST_MODEL decide."""
    if cost_model is None:
        return ""
    if not isinstance(cost_model, str | os.PathLike):
        raise TypeError(
            "recals: a cost model is 'built-in', 'calibrated', 'profile' or the path of a file, not "
            f"{cost_model!r} ({type(cost_model).__name__})"
        )
    text = os.fspath(cost_model)
    if not text:
        raise ValueError("recals: the path of the cost model is empty")
    return text


def device_name(device: object) -> str:
    """With an index, as plans have it: "cpu", "cuda:0". Raises TypeError, ValueError."""
    if not isinstance(device, str | torch.device):
        raise TypeError(f"recals: a device is a name such as 'cuda:0', not {device!r} ({type(device).__name__})")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"recals: there is no device {device!r}: {str(error).splitlines()[0]}") from None
    return "cuda:0" if str(parsed) == "cuda" else str(parsed)


def script_module(module: object, what: str) -> torch.jit.ScriptModule:
    """`module` itself if it is scripted or traced. Raises TypeError otherwise."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    if isinstance(module, torch.nn.Module):
        raise TypeError(
            f"recals: {what} takes a scripted or traced module, not a {type(module).__name__}. An eager module goes to "
            "recals.optimize, estimate, pareto and verify, or script it: torch.jit.script(module)."
        )
    raise TypeError(f"recals: {what} takes a torch.jit.ScriptModule, not {type(module).__name__}")


def torch_module(module: object, what: str) -> torch.nn.Module:
    """`module`, for what takes scripted and eager modules alike. Raises TypeError."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"recals: {what} takes a torch.nn.Module, not {type(module).__name__}")
    return module


def positional(example_inputs: Any, example_kwargs: dict[str, Any] | None) -> tuple[Any, ...]:
    """The example inputs of a scripted module. Raises TypeError."""
    if example_kwargs is not None:
        raise TypeError("recals: a scripted module takes its example inputs by position, not as example_kwargs")
    return example_tuple(example_inputs)


def example_tuple(example_inputs: Any) -> tuple[Any, ...]:
    """Positional arguments of the method; one tensor may stand for itself."""
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, list | tuple):
        return tuple(example_inputs)
    raise TypeError(
        f"recals: example_inputs must be a tuple of the method's arguments, not {type(example_inputs).__name__}"
    )


def limit_text(limit: object) -> str:
    """One limit as the text that the extension parses (and refuses, if it is nonsense)."""
    if isinstance(limit, bool) or not isinstance(limit, int | str):
        share = f"{100 * limit:g}%" if isinstance(limit, float) and 0 < limit <= 1 else ""
        raise TypeError(
            f"recals: a budget is a number of bytes, or a text such as '512MiB', '50%' or 'min', not {limit!r} "
            f"({type(limit).__name__})" + (f"; a share of the plain step's peak is written '{share}'" if share else "")
        )
    return str(limit)


def limits(budget: object) -> dict[str, str]:
    """Device name -> text; the name "" stands for every accelerator, or the CPU where there is none."""
    if isinstance(budget, Mapping):
        if not budget:
            raise ValueError("recals: the budget names no device")
        return {device_name(device): limit_text(limit) for device, limit in budget.items()}
    return {"": limit_text(budget)}


def gpu_indices(gpu_devices: object) -> list[int] | None:
    """None: all. Raises TypeError, ValueError."""
    if isinstance(gpu_devices, str):
        if gpu_devices in ("all", "none"):
            return None if gpu_devices == "all" else []
        raise ValueError(f"recals: gpu_devices is 'all', 'none', or indices of devices, not {gpu_devices!r}")
    if isinstance(gpu_devices, torch.Tensor):
        gpu_devices = gpu_devices.tolist()
    indices: list[Any] = list(gpu_devices) if isinstance(gpu_devices, Iterable) else [gpu_devices]
    for index in indices:
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"recals: an index in gpu_devices is an int, not {index!r} ({type(index).__name__})")
        if not 0 <= index < 128:
            raise ValueError(f"recals: an index in gpu_devices counts from 0, and {index} is none")
    return indices


def step_options(
    *,
    cost_model: CostModel | None,
    target_device: Device | None,
    workspace_margin: int | None,
    scratch: Scratch | None = None,
    loss: Loss | None = None,
    preserve_rng_state: bool = True,
    gpu_devices: GpuDevices = "all",
) -> Any:
    """What a step is analysed with."""
    options = _C.StepOptions()
    if loss is not None:
        options.loss = loss_for_analysis(loss)
    options.cost_model = cost_model_text(cost_model)
    if target_device is not None:
        options.target_device = device_name(target_device)
    if workspace_margin is not None:
        if isinstance(workspace_margin, bool) or not isinstance(workspace_margin, int):
            raise TypeError(f"recals: workspace_margin is a number of bytes, not {workspace_margin!r}")
        options.workspace_margin = workspace_margin
    if scratch is not None:
        if not isinstance(scratch, str):
            raise TypeError(f"recals: scratch is 'measured' or 'rules', not {scratch!r} ({type(scratch).__name__})")
        options.scratch = scratch
    if not isinstance(preserve_rng_state, bool):
        raise TypeError(f"recals: preserve_rng_state is True or False, not {preserve_rng_state!r}")
    options.preserve_rng_state = preserve_rng_state
    indices = gpu_indices(gpu_devices)
    if indices is not None:
        options.gpu_devices = indices
    return options


def policy_text(policy: object, subject: str) -> str:
    """A policy as the extension parses it."""
    if isinstance(policy, CheckpointPolicy):
        return str(policy.name)
    if not isinstance(policy, str):
        raise TypeError(
            f"recals: the policy of {subject} is a CheckpointPolicy, or the name of one such as 'must_save', "
            f"not {policy!r}"
        )
    return policy


def pin_texts(pins: Pins | None, analysed: Any) -> list[tuple[str, str]]:
    """Patterns and policies as the extension takes them. `analysed`: its handle of the step, whose storages a function
    is asked for."""
    if pins is None:
        return []
    if callable(pins):
        asked = [(name, pins(op, module, name, size)) for op, module, name, size in analysed.storages()]
        return [(f"value:{name}", policy_text(policy, name)) for name, policy in asked if policy is not None]
    if not isinstance(pins, Mapping):
        raise TypeError(f"recals: pins are a dict from patterns to policies, or a function, not {type(pins).__name__}")
    return [(str(pattern), policy_text(policy, repr(pattern))) for pattern, policy in pins.items()]


def set_goal(options: Any, budget: Budget, on_mismatch: str) -> None:
    """What a plan is to be made for, as far as no step need be known for it. Raises ValueError, TypeError."""
    if not isinstance(on_mismatch, str):
        raise TypeError(f"recals: on_mismatch is 'warn', 'error' or 'plain', not {on_mismatch!r}")
    options.on_mismatch = on_mismatch
    options.budgets = limits(budget)


def planning_options(analysed: Any, budget: Budget, pins: Pins | None, on_mismatch: str = "warn") -> Any:
    """What the step that `analysed` holds was analysed with, and what a plan is to be made for. Raises ValueError,
    TypeError."""
    options = analysed.options
    set_goal(options, budget, on_mismatch)
    options.pins = pin_texts(pins, analysed)
    return options
