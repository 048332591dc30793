"""Replays on streams. After each test the devices tell of memory that one stream used and another did not wait for."""

import copy

import recals
import sim
import torch
from torch import Tensor, nn

ROWS, WIDTH = 64, 32


class TwoDevices(nn.Module):
    """What sim:1 saves can only be made again from what sim:0 makes again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).to("sim:0")
        self.second = nn.Linear(WIDTH, WIDTH).to("sim:1")

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(torch.tanh(self.first(x)))
        x = torch.tanh(x.to("sim:1") * 2)
        return self.second(torch.sigmoid(x * torch.rand_like(x)))


def again(op: str, module: str, name: str, size: int) -> str | None:
    return (
        "must_recompute" if op in ("aten::tanh", "aten::sigmoid", "aten::to", "aten::mul", "aten::rand_like") else None
    )


def optimised(module: nn.Module, inputs: tuple[Tensor]) -> nn.Module:
    return recals.optimize(torch.jit.script(copy.deepcopy(module)), inputs, "1GiB", pins=again)


def side_streams() -> list[torch.Stream]:
    """One on each of two devices, behind what was done before."""
    streams = [torch.Stream("sim:0"), torch.Stream("sim:1")]
    for stream in streams:
        stream.wait_stream(torch.accelerator.current_stream(stream.device))
    return streams


def gradients(module: nn.Module, inputs: tuple[Tensor], streams: list[torch.Stream]) -> list[Tensor]:
    """Of a step whose forward ran on these streams; the backward is called elsewhere."""
    torch.manual_seed(1)
    with streams[0], streams[1]:
        loss = module(*inputs).sum()
    loss.backward()
    for index in range(2):
        torch.accelerator.synchronize(index)
    return [parameter.grad for parameter in module.parameters()]


def test_a_replay_is_on_the_streams_of_the_forward_on_all_its_devices() -> None:
    """Autograd sets the stream of the node that asks; the replay goes back to the other device."""
    inputs = (torch.randn(ROWS, WIDTH).to("sim:0"),)
    plain = TwoDevices()
    budgeted = optimised(plain, inputs)
    expected = gradients(plain, inputs, side_streams())
    streams = side_streams()
    defaults = [sim.launches(index, 0) for index in range(2)]
    recals.reset_counters()
    actual = gradients(budgeted, inputs, streams)
    assert recals.counters()["recomputed_nodes"] >= 6
    assert [sim.launches(index, 0) - defaults[index] for index in range(2)] == [0, 1]  # the gradient of the loss
    assert all(map(torch.equal, actual, expected))


def test_a_slot_that_another_stream_asks_for_is_waited_for_and_recorded() -> None:
    inputs = (torch.randn(ROWS, WIDTH).to("sim:0"),)
    budgeted = optimised(TwoDevices(), inputs)
    output = budgeted(*inputs)
    (sigmoid, _), *_ = [edge for edge in output.grad_fn.next_functions if edge[0] is not None][1:]
    while sigmoid.name() != "SigmoidBackward0":
        sigmoid = sigmoid.next_functions[0][0]
    reader = torch.Stream("sim:1")
    with reader:
        saved = sigmoid._saved_result
        total = saved.sum()
    assert sim.blocks_recorded_on(1, reader.stream_id) >= 1
    del saved
    torch.accelerator.synchronize(1)
    assert float(total) > 0
