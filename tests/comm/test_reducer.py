"""Gradients on their way into the buffer: as they come, added up, and none of the step before."""

import torch
from torch import nn

from skindx.comm.exchange import Exchange, Reducer
from skindx.comm.fabric import GradientBuffer


class Alone(Exchange):
    """One rank: keeps what the buffer held when a group was launched."""

    def __init__(self, groups: list[int]) -> None:
        self._groups = groups
        self.launched: list[tuple[int, list[float]]] = []

    @property
    def groups(self) -> list[int]:
        return self._groups

    def launch(self, group: int) -> None:
        first = sum(self._groups[:group])
        span = self.gradients.span(first, first + self._groups[group])
        self.launched.append((group, span.tolist()))

    def finish(self) -> bool:
        return True


class Net(nn.Module):
    """Two weights and one that the loss may leave out; backward meets c, then b, then a."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.tensor([value])) for value in (2.0, 3.0, 5.0))

    def forward(self, x: float, *, with_c: bool = True) -> torch.Tensor:
        out = self.a * self.b * x
        return (out * self.c if with_c else out).sum()


def reducer(groups: list[int]) -> tuple[Net, Alone, Reducer]:
    net, exchange = Net(), Alone(groups)
    gradients = GradientBuffer(list(net.named_parameters()))
    exchange.attach(None, gradients, 1)  # type: ignore[arg-type]
    return net, exchange, Reducer(gradients, exchange)


def test_a_group_is_whole_when_it_is_launched_and_the_gradients_lie_in_the_buffer() -> None:
    net, exchange, made = reducer([1, 2])
    made.begin()
    made.arm()
    net(1.0).backward()
    assert exchange.launched == [(0, [6.0]), (1, [10.0, 15.0])]  # c; b and a
    norm = made.finish()
    assert norm is not None
    assert abs(norm - (36 + 100 + 225) ** 0.5) < 1e-5
    made.gradients.flat.mul_(2)  # as an exchange does
    assert [weight.grad.item() for weight in (net.a, net.b, net.c)] == [30, 20, 12]  # type: ignore[union-attr]


def test_later_passes_of_a_step_are_added_and_nothing_of_the_step_before() -> None:
    net, exchange, made = reducer([3])
    for step in range(2):
        made.begin()
        net(1.0).backward()
        assert len(exchange.launched) == step  # not the last pass
        made.begin()
        made.arm()
        net(10.0).backward()
        made.finish()
        assert exchange.launched[-1] == (0, [66.0, 110.0, 165.0])


def test_a_weight_that_the_loss_does_not_reach_has_no_gradient_of_the_step_before() -> None:
    net, exchange, made = reducer([1, 2])
    for with_c in (True, False):
        made.begin()
        made.arm()
        net(1.0, with_c=with_c).backward()
        made.finish()
    # The plan has c's group first, so that both wait for the end of the second step.
    assert exchange.launched[2:] == [(0, [0.0]), (1, [2.0, 3.0])]
    assert net.c.grad is not None
    assert net.c.grad.item() == 0


def test_gradients_that_were_dropped_do_not_come_back() -> None:
    net, exchange, made = reducer([3])
    made.begin()
    net(100.0).backward()
    made.discard()
    made.begin()
    made.arm()
    net(1.0).backward()
    made.finish()
    assert exchange.launched == [(0, [6.0, 10.0, 15.0])]
