"""torch.utils.checkpoint around blocks of the models here, as their users would put it. Needs torch alone."""

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks_of(name: str, module: nn.Module) -> list[nn.Module]:
    """The parts that a user of torch.utils.checkpoint would wrap."""
    if name in ("resnet18", "resnet50"):
        return [block for stage in (module.layer1, module.layer2, module.layer3, module.layer4) for block in stage]
    if name == "gpt":
        return list(module.blocks)
    if name == "encoder":
        return list(module.encoder.layers)
    if name == "unet":
        return [*module.down, module.bottom, *module.up]
    if name == "uneven":
        # Each wide stack, and what follows it, becomes a block.
        layers = list(module.layers)
        module.layers = nn.Sequential(
            *(nn.Sequential(*layers[start : start + 6]) for start in range(0, len(layers), 6))
        )
        return list(module.layers)[:-1]
    return list(module.layers)


def checkpoint_blocks(name: str, module: nn.Module, every: int = 1) -> nn.Module:
    """Puts checkpoint around every `every`-th block of `module`, in place; parameters stay in their order."""
    for block in blocks_of(name, module)[::every]:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return module
