"""The main job: a module that trains within a budget."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from recals._errors import RecalsError
from recals.arguments import (
    Budget,
    CostModel,
    Device,
    GpuDevices,
    OnMismatch,
    Pins,
    Scratch,
    example_tuple,
    positional,
    torch_module,
)
from recals.eager.facade import optimize_in_place, restore_in_place, session_of
from recals.eager.settings import OnNewShape, Settings
from recals.loss import Loss
from recals.scripted import optimize_scripted, plan_of_scripted, restore_scripted

M = TypeVar("M", bound=nn.Module)


def optimize(
    module: M,
    example_inputs: Any = None,
    budget: Budget | None = None,
    *,
    example_kwargs: dict[str, Any] | None = None,
    pins: Pins | None = None,
    method: str = "forward",
    cost_model: CostModel | None = None,
    target_device: Device | None = None,
    workspace_margin: int | None = None,
    scratch: Scratch | None = None,
    loss: Loss | None = None,
    preserve_rng_state: bool = True,
    gpu_devices: GpuDevices = "all",
    on_mismatch: OnMismatch = "warn",
    on_new_shape: OnNewShape = "plan",
    max_plans: int = 64,
) -> M:
    """A module that is used exactly as `module`, and whose training step stays within `budget`.

    An eager module comes back itself, compiled in place: same class, parameters, hooks, `state_dict`, `train()` and
    `eval()`. Each training call is planned for its shapes, once; without gradients it runs as ever. docs/eager.md says
    how it is captured and what is not.

    A scripted or traced module comes back as another one, with a type of its own and the very same parameters, buffers
    and submodules, so an optimizer made earlier goes on working, and `module` itself is untouched. The plan holds for
    inputs of the shapes, dtypes and devices of `example_inputs` and for the present training/eval modes and
    attributes; without gradients a call runs the plain method, and so does one in another state, outside of the budget
    (`on_mismatch`). A module that was optimised before is planned anew from its plain form: one method of a module has
    a plan.

    Args:
        module: any module, scripted or not.
        example_inputs: the module's positional arguments, as in a training step; one tensor may stand for itself. Their
            values do not matter. A scripted module must have them. With them the plan is made at once, else in the
            first training call.
        budget: the most bytes that a step (forward, loss, backward) may hold above parameters, their gradients, and
            inputs: an int, "512MiB", "50%" of the plain step's own peak, or a dict from device name to those. Without a
            device it holds for every accelerator of the step, or for the CPU where there is none. "min" is the smallest
            budget that works, the number of bytes that a `BudgetError` names. "auto" is what the device has free now
            (CUDA: free in the driver, plus what torch's caching allocator has reserved and does not use; CPU: available
            to the system, and allowed by the process's control groups), less a twentieth of it, less gradients that the
            parameters do not have yet, and less two numbers for each element of a parameter that needs a gradient,
            which is what Adam keeps (docs/budgets.md). If the plain step fits, nothing is recomputed.
        pins: what the plan must or should keep or recompute: a dict from patterns to members of
            `torch.utils.checkpoint.CheckpointPolicy` or their names, ``{"layer1.*": "must_save", "aten::relu":
            "prefer_recompute", "%x.3": "must_recompute"}``. A pattern is a module path (with the modules inside), an
            op, or a value's name in plans; ``*`` and ``?`` stand for characters; the last one that names a storage
            counts (docs/budgets.md). MUST is never overridden. Or a function of op, module path, value name and bytes,
            which is asked for each storage and returns a policy or None.
        example_kwargs: the keyword arguments of such a call; of eager modules.
        method: the method that is called in training; of scripted modules.
        cost_model: where the times of ops come from: "built-in", "calibrated" (by `recals.calibrate`), the path of such
            a file, or "profile" to measure this step's ops on the example inputs, which must then be real data. By
            default what the environment variable RECALS_COST_MODEL says, else "built-in". It decides which of the plans
            within the budget is thought the fastest, and never bits or bytes.
        target_device: of scripted modules: the device to plan for, "cuda:0", where that is not the one that the module
            is on. Module and example inputs may then be on the CPU or on meta; the result trains when it has been
            moved to that device, and refuses to train on another one (docs/memory-model.md).
        workspace_margin: for CUDA, the bytes that cuBLAS and cuDNN are taken to allocate within a call. By default what
            CUBLAS_WORKSPACE_CONFIG says, else 32 MiB.
        scratch: where the scratch memory of the CPU's kernels comes from. "measured": each distinct kernel call of the
            step is made once, with made-up numbers, and what it takes is kept for this process and in a file of the
            user's cache folder for the next ones; about the time of one step when nothing is known yet. "rules": bounds
            from a table. By default measured, unless module or inputs are on meta (docs/scratch.md).
        loss: what the step computes of the module's result and runs the backward of, a function of what a call returns:
            ``loss=lambda logits: F.cross_entropy(logits.float(), targets)``. It is called on tensors without data, so
            that its bytes are counted and the plan fits them exactly; of the module's result it may read no number.
            Targets and the like are taken from around it. It is called several times, inside the autocast block that
            `optimize` is called in. Without it, what a scripted module returns is taken for the loss if it is one
            number, and else a stand-in is counted, the envelope of the usual losses (docs/memory-model.md). Of an
            eager module the only number among what it returns is the loss, and the rest gets no gradient: if it does
            all the same, a `BudgetWarning` says so, and the next step is planned anew. An eager module's loss is
            captured with it, and must not break the graph.
        preserve_rng_state: False: the plan stores and sets no state of a random generator, so what draws random numbers
            is never run again but kept; a dropout is made again from its mask. (torch.utils.checkpoint draws other
            numbers then; Recals never changes a gradient.)
        gpu_devices: the same device by device: generator states are stored and set of these accelerators only, by
            index: "all", "none", an int, several, or a tensor of them. The CPU's are not meant.
        on_mismatch: what a later training step does that the plan cannot hold within the budget, because the module is
            in another state than it was planned in (train() or eval(), an attribute that the step reads) or the saved
            tensors are somebody else's (torch.autograd.graph.save_on_cpu): "warn" (`BudgetWarning`, once for a module),
            "error", or "plain", which says nothing. The gradients are right in any case. Saved with a scripted module.
            The same holds for what of an eager module cannot be planned, and runs plain.
        on_new_shape: of eager modules: what a training step of other shapes or modes than the first one's does: "plan"
            makes a plan for it, "plain" runs it outside of the budget, with a `BudgetWarning`, "error" refuses it.
        max_plans: of eager modules: how many plans are kept for each graph; the one that was not used for the longest
            time goes first.

    Raises:
        BudgetError: no plan fits; its `smallest` and its text give the smallest budget that works, and
            `smallest_without_pins` the one without pins that say must.
        ValueError, TypeError: the budget, the pins, the module or the inputs are of the wrong kind; a pin names nothing
            in the step, or says must_recompute of what cannot be recomputed.
        RecalsError: the method cannot be analysed; the text names the node and its source line.

    Warns (CaptureWarning) if the module is known to do something else than the Python module that it was made from: a
    trace in which train() and eval() change nothing though it has ops that go another way in training, a scripted
    embedding without its max_norm.

    Warns (UserWarning) if a device may go over its budget all the same, because the backward works on two devices at
    once and what one holds depends on which is faster (docs/memory-model.md).
    """
    if budget is None:
        given = example_inputs if isinstance(example_inputs, str | int) else None
        hint = f"optimize(model, budget={given!r})" if given is not None else 'optimize(model, budget="8GiB")'
        raise TypeError(f"recals: optimize needs a budget, by keyword: recals.{hint}")
    settings = Settings(
        budget=budget,
        pins=pins,
        cost_model=cost_model,
        workspace_margin=workspace_margin,
        scratch=scratch,
        loss=loss,
        preserve_rng_state=preserve_rng_state,
        gpu_devices=gpu_devices,
        on_mismatch=on_mismatch,
        on_new_shape=on_new_shape,
        max_plans=max_plans,
    )
    if isinstance(module, torch.jit.ScriptModule):
        options = settings.analysis(loss, target_device)
        inputs = positional(example_inputs, example_kwargs)
        scripted: M = optimize_scripted(module, inputs, budget, pins, method, on_mismatch, options)
        return scripted
    torch_module(module, "optimize")
    if method != "forward" or target_device is not None:
        raise TypeError(
            "recals: method= and target_device= are for scripted modules; an eager module is planned for what it is "
            "called with, on the device that it is on"
        )
    arguments = None if example_inputs is None else example_tuple(example_inputs)
    return optimize_in_place(module, arguments, example_kwargs, settings)


def restore(module: M) -> M:
    """The plain module: of a scripted one that it was made from, with the same tensors and the original methods; an
    eager one comes back itself, and runs as it is.

    Raises RecalsError if `module` was not made by `optimize` (with RECALS_DISABLE=1 no eager module is, and none is
    refused).
    """
    if isinstance(module, torch.jit.ScriptModule):
        scripted: M = restore_scripted(module)
        return scripted
    torch_module(module, "restore")
    return restore_in_place(module)


def plan_of(module: nn.Module) -> Any:
    """The plan that `module` runs (docs/plan-format.md): budgets, predicted peaks in bytes, the cost model that it was
    made with, regions, and for every storage its fate and the reason.

    Of an eager module there is a list of them: those that its training calls have needed so far, each with the "graph"
    that it is of, by number, and the "signature" of the inputs that it holds for.

    Raises RecalsError if `module` was not made by `optimize`.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return plan_of_scripted(module)
    torch_module(module, "plan_of")
    session = session_of(module)
    if session is None:
        raise RecalsError(f"recals: this {type(module).__name__} was not made by recals.optimize")
    return session.plans()
