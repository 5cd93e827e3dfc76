"""Local steps: the message of a change, and engines on real ranks that train apart and meet."""

import math
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from device_exchanges import assert_same, updates
from exchanges import Net as AnyNet
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from some_plans import cluster, profile
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import GradientBuffer
from skindx.core.cost.pricing import Load
from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.training.config.engine import EngineSettings
from skindx.training.config.recipe import Ema
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave
from skindx.training.position import Position, count_step
from skindx.training.tasks.optimizer import WeightAverage
from skindx_methods.local_steps.local import AGREED_BYTES, CHUNK, HEAD_BYTES, LocalSettings
from skindx_methods.local_steps.local_codes import decode, encode, pack, unpack
from skindx_methods.local_steps.local_steps import LocalSteps
from skindx_methods.local_steps.round_guard import Moments, RoundGuard
from skindx_methods.plan.cluster import ClusterNetwork, Link, Links
from skindx_methods.plan.profiles import trace_of

CPU = EngineSettings(accelerator="cpu", gradient_clip=0, channels_last=True)
AS_DENSE = LocalSettings(steps=1, density=1, bits=32)
OVERLAP = LocalSettings(steps=4, density=0.05, outer_rate=0.7, outer_momentum=0.5, overlap=2)
SMALL = LocalSettings(steps=3, density=0.05, outer_rate=0.7, outer_momentum=0.5)


@given(st.integers(1, 13), st.lists(st.integers(0, 2**13 - 1), max_size=50))
def test_packed_numbers_come_back_without_gaps(bits: int, numbers: list[int]) -> None:
    wanted = torch.tensor(numbers, dtype=torch.int64) % 2**bits
    packed = pack(wanted, bits)
    assert len(packed) == math.ceil(len(numbers) * bits / 8)
    assert unpack(packed, bits, len(numbers)).equal(wanted)


@given(
    st.integers(1, 3 * CHUNK),
    st.sampled_from([2, 4, 8, 32]),
    st.sampled_from([1e-6, 0.02, 0.08, 0.09, 0.9, 1.0]),
    st.integers(0, 99),
)
def test_a_message_never_adds_to_what_is_left(
    elements: int, bits: Any, density: float, seed: int
) -> None:
    how = LocalSettings(density=density, bits=bits)
    change_M = torch.randn(elements, generator=torch.Generator().manual_seed(seed)).pow(3)
    message = encode(change_M, how)
    if not how.whole:
        assert HEAD_BYTES + len(message) == how.part_bytes(elements, 1)
    sent_M = decode(message, elements, how)
    left_M = change_M - sent_M
    assert left_M.norm() <= change_M.norm() * 1.004  # two numbers of 8 bits of mantissa
    for rows, k in ((row, how.sent) for row in sent_M.split(CHUNK)):
        assert int((rows != 0).sum()) <= k
    if bits == 32:  # the largest of each chunk, to the bit, and the others not
        for row, left in zip(change_M.split(CHUNK), left_M.split(CHUNK), strict=True):
            kept = left[left != 0].abs()
            assert len(kept) <= max(0, len(row) - how.sent)
            assert not len(kept) or kept.max() <= row.abs().topk(how.sent).values.min()


def test_two_bits_by_hand() -> None:
    """Magnitudes 1, 2 and 9, 10 are two levels: 1.5 and 9.5; the rest of the chunk is not sent."""
    change_M = torch.zeros(CHUNK)
    change_M[[7, 50, 90, 400]] = torch.tensor([1.0, -2.0, -9.0, 10.0])
    how = LocalSettings(density=4 / CHUNK, bits=2)
    message = encode(change_M, how)
    assert len(message) == math.ceil(4 * 9 / 8) + 1 + 4
    sent_M = decode(message, CHUNK, how)
    assert sent_M[[7, 50, 90, 400]].tolist() == [1.5, -1.5, -9.5, 9.5]
    assert int((sent_M != 0).sum()) == 4


def test_levels_are_those_of_least_error() -> None:
    """Four levels of a normal distribution lose 0.1175 of its variance (Max 1960, table I)."""
    change_M = torch.randn(2**17, generator=torch.Generator().manual_seed(0))
    lost = {}
    for bits in (2, 4, 8):
        how = LocalSettings(bits=bits)
        left_M = change_M - decode(encode(change_M, how), len(change_M), how)
        lost[bits] = float(left_M.square().mean())
    assert lost[2] == pytest.approx(0.1175, rel=0.02)
    assert lost[4] < 0.0125  # 0.0115 with equal steps
    assert lost[8] < 0.0001


def test_a_round_that_is_longer_than_an_epoch_is_refused() -> None:
    LocalSettings(steps=7).check_epoch("member a", 7)
    with pytest.raises(
        UserError, match=r"^member a: exchange\.steps=8 is more than the 7 steps of"
    ):
        LocalSettings(steps=8).check_epoch("member a", 7)


def test_a_plan_shares_a_rounds_message_out_over_its_steps() -> None:
    load, network = Load(trace_of(profile()), profile()), ClusterNetwork(cluster(4))
    one, ten = (LocalSettings(steps=steps) for steps in (1, 10))
    size = 2 * one.part_bytes(load.size_bytes // 4, 4)
    assert size == 2 * (12 + 2 * (512 * 2 // 8 + 4))  # 3,000 elements are 6 chunks, 2 a rank
    first, tenth = (each.schedule(load, network) for each in (one, ten))
    assert [message.size_bytes for message in first.messages] == [AGREED_BYTES, size]
    assert [message.size_bytes for message in tenth.messages] == [5, round(size / 10)]
    assert tenth.messages[1].timed.wire_s == pytest.approx(first.messages[1].timed.wire_s / 10)
    assert tenth.local_s == pytest.approx(first.local_s / 10)
    assert ten.lossy
    whole = LocalSettings(density=1, bits=32)
    assert whole.part_bytes(3000, 4) == 12_000
    few = LocalSettings(density=0.02)
    assert few.part_bytes(3000, 4) == 12 + math.ceil(2 * 11 * 9 / 8) + math.ceil(2 * 11 * 2 / 8) + 8
    # What the steps of an overlap take is not waited for, and no more than all of it.
    step_s = load.trace.forward_s + sum(load.trace.backward_s) + load.trace.update_s
    links = Links(between=Link(alpha_s=step_s / 5, beta_s_per_byte=1e-9))
    slow = ClusterNetwork(cluster(4, links=links))
    waits = [
        LocalSettings(steps=10, overlap=overlap).schedule(load, slow).messages[1].timed.alone_s
        for overlap in range(3)
    ]
    assert waits[0] - waits[1] == pytest.approx(step_s / 10)
    assert step_s / 10 < waits[0] < 2 * step_s / 10
    assert waits[2] == 0
    with pytest.raises(UserError, match=r"exchange\.overlap=3 must be less than exchange\.steps=3"):
        LocalSettings.parse({"steps": 3, "overlap": 3}, origin="exchange", expand=False)


class Net(AnyNet):
    """With a frozen layer; DeepSpeed sends round what is contiguous and has dimensions."""

    def __init__(self) -> None:
        super().__init__()
        del self.scale
        self.scale = 1.0
        self.norm.weight.requires_grad_(False)
        self.to(memory_format=torch.contiguous_format)


class _Apart:
    """One network on one rank of an engine."""

    engine_settings = CPU

    def __init__(self, exchange: ExchangeSettings, optimizer: str = "adamw") -> None:
        self.mesh, self.net = join(self.engine_settings), Net()
        weights = self.net.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(weights, lr=0.01)
            if optimizer == "adamw"
            else torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=1e-3)
        )
        self.engine = Engine(self.net, self.optimizer, self.mesh, 8, exchange=exchange)
        self.agreed: list[int] = []

    def take(self, steps: range, spoil: bool = False) -> list[bool]:
        rank, taken = self.mesh.data.rank, []
        for step in steps:
            generator = torch.Generator().manual_seed(10 * step + rank)
            for piece in range(2):
                outputs = self.engine(torch.randn(2, 3, 5, 5, generator=generator))
                if spoil and rank == self.mesh.data.size - 1:
                    outputs.register_hook(lambda grad: grad * float("nan"))
                loss = outputs.square().sum()
                self.engine.backward(loss, 4 * self.mesh.data.size, last=piece == 1)
            taken.append(self.engine.step(0.01))
            self.agreed.append(self.agreed_now)
            if not taken[-1]:
                self.engine.discard()
        return taken

    @property
    def exchange(self) -> LocalSteps:
        exchange = self.engine.exchange
        assert isinstance(exchange, LocalSteps)
        return exchange

    @property
    def agreed_now(self) -> int:
        return self.exchange.agreed if self.engine.exchange else 1

    @property
    def moments(self) -> Moments:
        data = self.mesh.data
        return Moments(self.optimizer, self.net, data.rank, data.size)

    def weights(self) -> Tensor:
        return torch.cat([weight.detach().reshape(-1) for weight in self.net.parameters()])

    def apart(self) -> float:
        every = [torch.empty(0)] * self.mesh.data.size
        dist.all_gather_object(every, self.weights())
        return max(float((other - every[0]).abs().max()) for other in every)

    def states(self) -> tuple[Any, list[Any], list[Any]]:
        every: list[Any] = [None] * self.mesh.data.size
        local = (self.engine.state_dict(), self.exchange.state_dict(), self.moments.state_dict())
        dist.all_gather_object(every, local)
        return every[0][0], [one[1] for one in every], [one[2] for one in every]

    def load(self, shared: Any, exchanges: list[Any], moments: list[Any]) -> None:
        self.engine.load_state_dict(shared)
        self.exchange.load_state_dict(exchanges)
        self.moments.load_state_dict(moments)


def _as_dense() -> float:
    ends = []
    for exchange in (DenseSettings(), AS_DENSE):
        run = _Apart(exchange, "sgd")
        run.take(range(5))
        ends.append(run.weights())
    return float((ends[0] - ends[1]).abs().max())


def _rounds(run: _Apart) -> list[float]:
    """How far ranks are apart after each step, and after they have met."""
    far = []
    for step in range(7):
        run.take(range(step, step + 1))
        far.append(run.apart())
    run.agreed += [run.exchange.sync(), run.exchange.sync()]
    return [*far, run.apart()]


def _mass(run: _Apart, how: LocalSettings) -> tuple[float, bool]:
    """How far what was sent and what is left are from what all moved by; ranks agree after each."""
    assert run.engine.exchange is not None
    fabric, world, net = run.engine.exchange.fabric, run.mesh.data.size, Net()
    exchange, alike = LocalSteps(how), True
    exchange.attach(fabric, GradientBuffer(list(net.named_parameters())), 9)
    begin_M, moved = exchange.state_dict()["anchor"].clone(), 0.0
    generator = torch.Generator().manual_seed(run.mesh.data.rank)
    for step in range(8):
        exchange.forward()
        before = _flat(net)
        with torch.no_grad():
            for weight in filter(lambda weight: weight.requires_grad, net.parameters()):
                weight.add_(torch.randn(weight.shape, generator=generator))
        moved = moved + before - _flat(net)
        exchange.step_done()
        if exchange.agreed + (exchange.sync() if step == 7 else 0):
            every = [torch.empty(0)] * world
            dist.all_gather_object(every, _flat(net))
            alike = alike and all(other.equal(every[0]) for other in every)
    after = exchange.state_dict()
    anchors_M = begin_M - after["anchor"]
    net.load_state_dict(Net().state_dict())
    # The trained ones alone, in the buffer's order.
    moved_M = GradientBuffer(list(net.named_parameters()))
    with torch.no_grad():
        nn.utils.vector_to_parameters(moved, net.parameters())
        torch._foreach_copy_(moved_M.views, tuple(moved_M.parameters))
    pair = torch.stack([moved_M.flat, after["residual"] + anchors_M]).double()
    dist.all_reduce(pair)
    assert world > 1
    return float((pair[0] - pair[1]).abs().max() / pair[0].abs().max()), alike


def _flat(net: nn.Module) -> Tensor:
    return torch.cat([weight.detach().reshape(-1) for weight in net.parameters()])


def _refused(run: _Apart) -> list[str]:
    """What all ranks say of one that sends numbers that are not finite, or has other settings."""
    assert run.engine.exchange is not None
    fabric, said = run.engine.exchange.fabric, []
    last = run.mesh.data.rank == run.mesh.data.size - 1
    for how in (SMALL, AS_DENSE, OVERLAP, LocalSettings(density=0.02, bits=32)):
        net = Net()
        exchange = LocalSteps(how)
        exchange.attach(fabric, GradientBuffer(list(net.named_parameters())), 9)
        if last:
            with torch.no_grad():
                net.head.weight[3, 3] = float("nan")
        try:
            exchange.step_done()
            exchange.sync()
        except UserError as error:
            said.append(str(error))
    exchange = LocalSteps(SMALL.model_copy(update={"density": 0.06}) if last else SMALL)
    try:
        exchange.attach(fabric, GradientBuffer(list(Net().named_parameters())), 9)
    except UserError as error:
        said.append(str(error))
    return said


def _resumed(how: LocalSettings, stop: int) -> tuple[bool, bool]:
    whole, first, again = _Apart(how), _Apart(how), _Apart(how)
    whole.take(range(9))
    first.take(range(stop))
    shared, exchanges, moments = first.states()
    again.load(shared, exchanges, deepcopy(moments))  # an optimizer goes on in what it is given
    again.take(range(stop, 9))
    same = again.weights().equal(whole.weights())
    # One rank more has saved: all take the mean, in weights, residuals and moments.
    more = _Apart(how)
    more.load(shared, [*exchanges, exchanges[0]], [*moments, moments[0]])
    after = more.states()
    names = {"weights", "residual", "begun"} & set(exchanges[0])
    near = all(
        torch.allclose(
            sum(one[name] for one in [*exchanges, exchanges[0]]) / (1 + len(exchanges)),
            after[1][0][name],
            atol=1e-6,
        )
        for name in names
    )
    name = "head.weight"
    moment = sum(one[name]["exp_avg"] for one in [*moments, moments[0]]) / (1 + len(moments))
    near = near and torch.allclose(after[2][0][name]["exp_avg"], moment, atol=1e-6)
    apart = more.apart()
    more.take(range(stop, 9))
    more.exchange.sync()
    return same, apart == more.apart() == 0 and near


def _on_a_rank() -> dict[str, Any]:
    found: dict[str, Any] = {"as dense": _as_dense()}
    run = _Apart(SMALL)
    found["apart"] = _rounds(run)
    found["agreed"] = list(run.agreed)
    before = run.weights()
    found["spoiled"] = run.take(range(7, 8), spoil=True), run.weights().equal(before)
    run.take(range(8, 10))
    found["met again"] = run.agreed_now, run.apart()
    found["bytes"] = run.exchange.bytes_sent, len(before)
    found["mass"] = [
        _mass(
            run,
            LocalSettings(steps=max(3, overlap + 1), density=density, bits=bits, overlap=overlap),
        )
        for density, bits, overlap in (
            (0.05, 2, 0),
            (0.5, 8, 1),
            (1, 4, 2),
            (1, 2, 3),
            (0.02, 32, 0),
            (1, 32, 0),
            (1, 32, 2),
            (0.05, 2, 2),
        )
    ]
    found["resumed"] = [_resumed(SMALL, 5), _resumed(OVERLAP, 4), _resumed(OVERLAP, 5)]
    found["refused"] = _refused(run)
    found["averaged"] = _averaged(_Apart(OVERLAP))
    found["agreed on"] = _agreed_on(run.mesh)
    leave()
    return found


def _averaged(run: _Apart) -> tuple[float, float]:
    """How far averages are apart that take in what all agree on, while the weights are apart."""
    average = WeightAverage(Net(), Ema(decay=0.9))
    for step in range(7):
        run.take(range(step, step + 1))
        for number in range(run.agreed_now):
            average.update(run.engine.module, number)
    every = [torch.empty(0)] * run.mesh.data.size
    dist.all_gather_object(every, _flat(average.module))
    run.engine(torch.zeros(2, 3, 5, 5))  # they go on from what they moved by
    return max(float((other - every[0]).abs().max()) for other in every), run.apart()


def _agreed_on(mesh: Mesh) -> list[Any]:
    """Rank 1 is asked to stop in step 2 and skips steps 1 and 2; ranks meet in step 3."""
    asked = [False]
    guard = RoundGuard(mesh, 9, lambda: asked[0], agree_s=0)
    exchange = LocalSteps(SMALL)
    training: Any = SimpleNamespace(
        name="a",
        position=Position(),
        guard=guard,
        engine=SimpleNamespace(exchange=exchange),
        task=SimpleNamespace(images=99, batch=1),
    )
    guard._most_steps, found = 99, list[Any]()
    lines: Any = SimpleNamespace(line=found.append)
    for step in range(1, 5):
        training.position.step = step
        bad = mesh.data.rank == 1 and step <= 2
        asked[0] = asked[0] or (mesh.data.rank == 1 and step == 2)
        loss = guard.check(torch.tensor(float("nan") if bad else 1.0))
        exchange.agreed = int(step == 3)
        count_step(training, loss, SimpleNamespace(local_count=4, count=8), lines, rate=0.1)
        found.append(guard.stop)
    return [*found, training.position.skipped, training.position.skipped_pictures]


def _compiled() -> tuple[bool, bool]:
    _Apart.engine_settings = CPU.model_copy(update={"compile": True})
    found = _resumed(OVERLAP, 5)
    leave()
    return found


@pytest.mark.long
@pytest.mark.distributed
def test_compiled_networks_go_on_inside_an_overlap_to_the_bit() -> None:
    assert run_ranks(2, _compiled, timeout_s=600) == [(True, True)] * 2


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.long), 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(request.param, _on_a_rank)
    return found


@pytest.mark.distributed
def test_ranks_train_apart_and_meet_to_the_bit(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["as dense"] < 1e-6
        assert found["agreed"] == [0, 0, 3, 0, 0, 3, 0, 1, 0]
        assert [far == 0 for far in found["apart"]] == [
            agreed > 0 for agreed in found["agreed"][:8]
        ]
        assert found["met again"] == (3, 0)
        assert all(lost < 1e-6 and alike for lost, alike in found["mass"]), found["mass"]
        assert found["resumed"] == [(True, True)] * 3
        assert found["averaged"][0] == 0 < found["averaged"][1]
        sent, elements = found["bytes"]
        world, rounds = len(ranks), 4
        message = 2 * (world - 1) * SMALL.part_bytes(elements, world)
        assert sent == rounds * message + (world - 1) * 32


@pytest.mark.distributed
def test_a_rank_skips_a_step_alone_and_all_learn_of_it_when_they_meet(
    ranks: list[dict[str, Any]],
) -> None:
    *others, last = [found["spoiled"] for found in ranks]
    assert last == ([False], True)
    assert others == [([True], False)] * len(others)
    line = "epoch 1, step 3: the loss is not finite, 2 steps of single ranks are skipped"
    for found in ranks:
        assert found["agreed on"] == [False, False, line, True, True, 2, 8]


@pytest.mark.distributed
def test_what_a_rank_sends_is_refused_by_all_in_the_same_sentence(
    ranks: list[dict[str, Any]],
) -> None:
    last = len(ranks) - 1
    for found in ranks:
        *diverged, other = found["refused"]
        whose = [f"rank {last}", "a rank", f"rank {last}", f"rank {last}"]
        for said, who in zip(diverged, whose, strict=True):
            assert said.startswith("exchange.kind=local: the training diverged, what the weights ")
            assert f" of {who} moved by in round 1 is not finite; lower learning_rate" in said
        assert other.startswith(f"exchange.kind=local: rank {last} trains another network or ")


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_message_of_another_shape_is_refused(overlap: int) -> None:
    weight = nn.Parameter(torch.zeros(2, 5))
    how = LocalSettings(steps=2, density=0.5, overlap=overlap)
    exchange, fabric = LocalSteps(how), _Garbled()
    exchange.attach(cast(Any, fabric), GradientBuffer([("a", weight)]), 9)
    for at, said in (
        (0, "of rank 1 begins otherwise than"),
        (12, "marks another number of places"),
    ):
        fabric.at = at
        for _ in range(1 + overlap):
            exchange.step_done()
            assert exchange.agreed == 0
        with pytest.raises(UserError, match=rf"the message .*{said}.*start all ranks with the"):
            exchange.step_done()
        exchange._sent, exchange.taken = None, 0


def test_a_message_of_a_lost_group_is_taken_back_unless_all_know_it() -> None:
    def exchange_of(weight: nn.Parameter, steps: int = 2, overlap: int = 1) -> LocalSteps:
        how = LocalSettings(steps=steps, density=0.001, overlap=overlap)
        made, fabric = LocalSteps(how), _Garbled()
        made.attach(cast(Any, fabric), GradientBuffer([("a", weight)]), 9)
        return made

    def moved(weight: nn.Parameter, exchange: LocalSteps) -> None:
        exchange.forward()
        with torch.no_grad():
            weight.add_(torch.randn(50))
        exchange.step_done()

    weight = nn.Parameter(torch.zeros(50))
    exchange = exchange_of(weight)
    for _ in range(3):
        moved(weight, exchange)
    left_M = exchange.residual_M.clone()
    moved(weight, exchange)  # ends a round
    state = deepcopy(exchange.state_dict())
    assert {"round", "mean"} <= state.keys()
    exchange.break_off()
    assert left_M.any()
    assert torch.allclose(exchange.residual_M, left_M, atol=1e-6)
    assert exchange.state_dict().keys() == state.keys() - {"round", "mean", "begun"}
    assert exchange.state_dict()["taken"] == 2

    again = exchange_of(nn.Parameter(torch.zeros(50)))
    again.load_state_dict([state, state])
    again.break_off()
    after = again.state_dict()
    assert after.keys() == state.keys()
    assert all(torch.as_tensor(after[key]).equal(torch.as_tensor(state[key])) for key in state)

    late = exchange_of(weight := nn.Parameter(torch.zeros(50)), steps=3, overlap=2)
    for _ in range(4):
        moved(weight, late)
    late.break_off()
    assert late.state_dict()["taken"] == 4  # with the step since the message was sent


def test_outer_steps_are_those_of_nesterovs_sgd() -> None:
    """Three rounds of rate 0.7 and momentum 0.9 against PyTorch's own optimizer."""
    how = LocalSettings(steps=2, density=1, bits=32, outer_rate=0.7, outer_momentum=0.9)
    weight, plain = nn.Parameter(torch.ones(7)), nn.Parameter(torch.ones(7))
    exchange = LocalSteps(how)
    exchange.attach(cast(Any, _Garbled()), GradientBuffer([("a", weight)]), 9)
    outer = torch.optim.SGD([plain], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(6):
        exchange.forward()
        with torch.no_grad():
            weight.add_(torch.randn(7, generator=torch.Generator().manual_seed(number)))
        moved = weight.detach().clone()
        exchange.step_done()
        if exchange.agreed:
            plain.grad = plain.detach() - moved
            outer.step()
            torch.testing.assert_close(weight, plain)
    assert not torch.allclose(weight, torch.ones(7))


class _Alone:
    device, bytes_sent, rank, world = torch.device("cpu"), 0, 0, 1


class _Garbled(_Alone):
    """A peer whose messages differ in a byte; its settings do not."""

    world = 2
    at: int | None = None

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor, tensor]

    def all_reduce(self, tensor: Tensor) -> Any:
        tensor.mul_(self.world)
        return SimpleNamespace(wait=lambda: None)

    def share(self, rows_PM: Tensor) -> list[Any]:
        return self.deal(rows_PM, rows_PM)

    def deal(self, rows_PM: Tensor, into_PM: Tensor) -> list[Any]:
        into_PM[1] = rows_PM[0]
        if self.at is not None:
            into_PM[1, self.at] ^= 1
        return []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"taken": -1}, "exchange/taken"),
        ({"anchor": torch.zeros(3)}, "exchange/anchor"),
        ({"weights": None}, "exchange/weights"),
        ({"residual": torch.zeros(10).double()}, "exchange/residual"),
    ],
)
def test_a_state_of_another_shape_is_refused(change: dict[str, Any], said: str) -> None:
    weight = nn.Parameter(torch.ones(2, 5))
    exchange = LocalSteps(SMALL)
    fabric: Any = _Alone()
    exchange.attach(fabric, GradientBuffer([("a", weight)]), 9)
    state = exchange.state_dict()
    with pytest.raises(UnfitStateError, match=said):
        exchange.load_state_dict([{**state, **change}])
    assert weight.detach().equal(torch.ones(2, 5))


@pytest.mark.gpu
@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2])
def test_a_device_makes_the_same_of_it(device: str, world: int) -> None:
    """Two ranks share the device; one alone works under the device's own backend."""
    backend = "nccl" if device == "cuda" and world == 1 else "gloo"
    ranks = run_ranks(world, updates, device, backend, {"local": LocalSettings()}, device=device)
    assert_same(ranks, {})


def test_forms_that_split_layers_and_engines_in_lockstep_are_refused() -> None:
    split = SimpleNamespace(splits=True, kind="halves")
    for engine, reported in (
        (SimpleNamespace(lockstep="", parallel=split), r"parallel\.kind=halves splits layers"),
        (SimpleNamespace(lockstep="zero=1", parallel=split), "zero=1 needs all ranks"),
    ):
        with pytest.raises(ValueError, match=rf"kind=local lets ranks train apart, .*{reported}"):
            LocalSettings().check_engine(engine)
