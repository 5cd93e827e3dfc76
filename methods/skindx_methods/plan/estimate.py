"""Time and memory of a step under a choice; time, money and energy of the whole ensemble."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from skindx.core.cost.pricing import Load, Message, StepSchedule, Strategy
from skindx.core.cost.profile import AtBatch, Profile, Trace
from skindx_methods.plan.choices import Choice, PlannedMember, Workload
from skindx_methods.plan.cluster import Cluster, ClusterNetwork
from skindx_methods.plan.events import Feeding, Step, simulate_step
from skindx_methods.plan.profiles import Profiles, compute_s, compute_scale, trace_of


@dataclass(frozen=True)
class Simulated:
    """A step, and everything that it was simulated from."""

    trace: Trace
    schedule: StepSchedule
    network: ClusterNetwork
    profile: Profile
    profiles: Profiles
    pieces: int
    feeding: Feeding

    def run(self) -> Step:
        """Simulate it."""
        return simulate_step(
            self.trace,
            self.schedule,
            self.network,
            device=self.profiles.device,
            pieces=self.pieces,
            feeding=self.feeding,
        )


FARTHEST = 4.0
"""Ratio to the largest measured batch above which a memory estimate is not trusted."""


@dataclass(frozen=True)
class Memory:
    """Memory of one rank."""

    peak_bytes: float
    spread: float
    """Standard deviation over the mean."""
    measured: bool
    extrapolated: float
    """Ratio of its batch to the largest one that was measured."""


def memory_of(
    strategy: Strategy,
    load: Load,
    network: ClusterNetwork,
    batch: int,
    base_bytes: int,
    *,
    checkpointing: bool,
) -> Memory:
    """Return the memory of a rank whose pieces have `batch` images.

    On a CPU the copy of all state that waits for the disk is counted too, the main rank's,
    as if there were an average of the weights.
    """
    profile = load.profile
    points = sorted((point for point in profile.at if point.peak_bytes), key=_batch)
    extra = strategy.memory_bytes(load, network, batch)
    if load.device == "cpu":
        extra += 2 * profile.parameter_bytes + profile.optimizer_bytes
        extra += strategy.saved_bytes(load, network)
    if not points:
        computed = base_bytes + 3 * profile.parameter_bytes + _features(profile, batch)
        return Memory(computed + extra, 0.3, measured=False, extrapolated=batch / profile.batch)
    if checkpointing and profile.checkpointing:
        points = [*(point for point in points[:1]), profile.checkpointing]
        points.sort(key=_batch)
    if len(points) == 1:
        slope = _features(profile, 1)
        peak = points[0].peak_bytes + slope * (batch - points[0].batch)
        spread = 0.2
    else:
        first, last = points[0], points[-1]
        slope = max(0.0, (last.peak_bytes - first.peak_bytes) / max(1, last.batch - first.batch))
        peak = last.peak_bytes + slope * (batch - last.batch)
        spread = 0.05
    far = max(batch / points[-1].batch, 1.0)
    return Memory(max(0.0, peak + extra), spread * far**0.5, measured=True, extrapolated=far)


def _batch(point: AtBatch) -> int:
    return point.batch


def _features(profile: Profile, batch: int) -> float:
    """Activations that backward needs, and their gradients while it goes through them."""
    activations = [layer.activation_bytes for layer in profile.layers]
    return (sum(activations) + max(activations, default=0)) * batch / profile.batch


NETWORK_FARTHEST = 10.0
RANKS_FARTHEST = 4.0


@dataclass(frozen=True)
class Machine:
    """The machine of a training, and the measurements on it."""

    profiles: Profiles
    cluster: Cluster

    @cached_property
    def networks(self) -> dict[tuple[int, int], ClusterNetwork]:
        """Nodes and ranks a node -> the network among them."""
        return {}

    def network(self, nodes: int, ranks_per_node: int) -> ClusterNetwork:
        """Return the network among some of the nodes."""
        key = (nodes, ranks_per_node)
        if key not in self.networks:
            self.networks[key] = ClusterNetwork(self.cluster, nodes, ranks_per_node)
        return self.networks[key]


@dataclass(frozen=True)
class Estimate:
    """The prediction for one network under one choice."""

    choice: Choice
    step: Step
    simulated: Simulated
    memory: Memory
    outside: dict[str, float] = field(default_factory=dict)
    """Inputs outside the calibration, in sentences -> how far over what was measured."""

    @property
    def schedule(self) -> StepSchedule:
        """The communication of a step."""
        return self.simulated.schedule

    @property
    def beyond(self) -> tuple[str, ...]:
        """Inputs outside the calibration, in sentences; empty: none."""
        return tuple(self.outside)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.step.seconds

    @property
    def images_per_s(self) -> float:
        """Throughput of all ranks together."""
        return self.choice.batch / self.step_s


def estimate(profile: Profile, choice: Choice, machine: Machine) -> Estimate:
    """Return what `choice` takes for a step of a network. Raises UserError."""
    network = machine.network(choice.nodes, choice.ranks_per_node)
    if choice.side_by_side > 1:
        network = machine.network(1, 1)
    corrections = machine.cluster.corrections
    compute = corrections["compute"].factor if "compute" in corrections else 1.0
    communicate = corrections["communicate"].factor if "communicate" in corrections else 1.0
    scale = compute_scale(profile, choice.piece) * compute
    trace = trace_of(profile, scale=scale)
    if choice.checkpointing:
        trace = _computed_again(trace, profile)
    load = Load(trace, profile, machine.profiles.device, choice.piece, choice.accumulate, compute)
    schedule = choice.strategy.schedule(load, network)
    if communicate != 1.0:
        schedule = messages_slower(schedule, communicate)
    images = choice.piece * choice.accumulate
    feeding = Feeding(read_s=images * profile.read_s / machine.profiles.cores)
    simulated = Simulated(
        trace, schedule, network, profile, machine.profiles, choice.accumulate, feeding
    )
    memory = memory_of(
        choice.strategy,
        load,
        network,
        choice.piece,
        machine.profiles.base_bytes,
        checkpointing=choice.checkpointing,
    )
    beyond = _beyond(choice, machine, network, memory)
    return Estimate(choice, simulated.run(), simulated, memory, beyond)


def messages_slower(schedule: StepSchedule, factor: float) -> StepSchedule:
    """Return the schedule whose messages take `factor` times as long on the wire."""

    def slower(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        return tuple(replace(one, timed=one.timed.scaled(factor)) for one in messages)

    return replace(
        schedule,
        messages=slower(schedule.messages),
        gathers=slower(schedule.gathers),
        spreads=slower(schedule.spreads),
        flow=schedule.flow.slower(wire=factor) if schedule.flow else None,
    )


def _computed_again(trace: Trace, profile: Profile) -> Trace:
    """Return a trace whose backward computes forward once more, spread over its tensors."""
    measured = profile.checkpointing
    more_s = trace.forward_s
    if measured:
        plain_s = (compute_s(profile) * compute_scale(profile, measured.batch)) or 1e-12
        more_s = max(0.0, measured.compute_s / plain_s - 1) * (
            trace.forward_s + sum(trace.backward_s)
        )
    total = sum(trace.backward_s) or 1.0
    return trace.model_copy(
        update={"backward_s": tuple(seconds * (1 + more_s / total) for seconds in trace.backward_s)}
    )


def _beyond(
    choice: Choice, machine: Machine, network: ClusterNetwork, memory: Memory
) -> dict[str, float]:
    """Return what lies outside the calibration: sentence -> how far over what was measured."""
    result: dict[str, float] = {}
    cluster = machine.cluster
    if memory.measured and memory.extrapolated > FARTHEST:
        result[
            f"a piece of {choice.piece} images is {memory.extrapolated:.1f} times the largest "
            "batch whose memory was measured"
        ] = memory.extrapolated
    if network.ranks == 1:
        return result
    fastest = cluster.fastest_beta_s_per_byte
    beta = network.between.beta_s_per_byte if network.nodes > 1 else network.inside.beta_s_per_byte
    if fastest and beta < fastest / NETWORK_FARTHEST:
        result[
            f"a link of {beta:.3g} s a byte is {fastest / beta:.0f} times as fast as any that was "
            "measured"
        ] = fastest / beta
    if cluster.source == "measured" and cluster.collectives:
        most = max(known.ranks for known in cluster.collectives)
        if network.ranks > RANKS_FARTHEST * most:
            result[
                f"{network.ranks} ranks are more than {RANKS_FARTHEST:g} times the {most} measured"
            ] = network.ranks / most
    return result


@dataclass(frozen=True)
class MemberTime:
    """One member."""

    name: str
    estimate: Estimate
    epoch_s: float
    validation_s: float
    epochs: int

    @property
    def seconds(self) -> float:
        """Seconds of all its epochs."""
        return self.epochs * (self.epoch_s + self.validation_s)


@dataclass(frozen=True)
class PlanOutcome:
    """A choice for all members."""

    choice: Choice
    members: tuple[MemberTime, ...]
    seconds: float
    """Time until the last member is trained; 0 where the number of images is not known."""
    nodes: int
    price_per_node_hour: float | None
    watts_per_node: float | None
    fits: bool
    memory_bytes: float
    as_given: bool = False

    @property
    def first(self) -> Estimate:
        """Estimate of the first member."""
        return self.members[0].estimate

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `skindx train` for it."""
        return self.choice.fragment()

    @property
    def changed(self) -> int:
        """How many of these settings differ from the defaults; the number of ranks is none."""
        return self.choice.changed()

    @property
    def score_s(self) -> float:
        """The quantity that the search minimises: the whole, or the time of an image."""
        return self.seconds or sum(
            member.estimate.step_s / member.estimate.choice.batch for member in self.members
        )

    @property
    def money(self) -> float | None:
        """Price of the nodes for the whole training."""
        price = self.price_per_node_hour
        return None if price is None else price * self.nodes * self.seconds / 3600

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the nodes, estimated from their given watts."""
        watts = self.watts_per_node
        return None if watts is None else watts * self.nodes * self.seconds / 3.6e6

    @property
    def beyond(self) -> tuple[str, ...]:
        """Inputs outside the calibration."""
        return tuple(
            dict.fromkeys(word for member in self.members for word in member.estimate.beyond)
        )


def outcome(
    choice: Choice,
    estimates: Mapping[str, Estimate],
    workload: Workload,
    profiles: Profiles,
    cluster: Cluster,
    *,
    as_given: bool = False,
    whole_s: Callable[[Sequence[MemberTime]], float] | None = None,
) -> PlanOutcome:
    """Add up the members; `estimates` by member's name.

    `whole_s` returns when the last one is trained, where they are not trained one after the other.
    """
    members = tuple(
        _member(member, estimates[member.name], profiles) for member in workload.members
    )
    total = whole_s(members) if whole_s else sum(member.seconds for member in members)
    memory = max(estimate.memory.peak_bytes for estimate in estimates.values())
    limit = cluster.memory_gb
    ranks = choice.ranks_per_node if profiles.device == "cpu" else 1
    fits = limit is None or memory * ranks <= limit * 1e9
    return PlanOutcome(
        choice,
        members,
        total,
        choice.nodes,
        cluster.price_per_node_hour,
        cluster.watts_per_node,
        fits,
        memory,
        as_given,
    )


def _member(member: PlannedMember, estimate: Estimate, profiles: Profiles) -> MemberTime:
    choice = estimate.choice
    steps = max(1, round(member.images / choice.batch)) if member.images else 0
    rank_images = member.validation / (1 if choice.side_by_side > 1 else choice.ranks)
    profile = member.profile
    forward_s = sum(layer.forward_s or 0.0 for layer in profile.layers) / profile.batch
    forward_s *= compute_scale(profile, profile.batch)
    read_s = profile.read_s / profiles.cores
    seconds = forward_s + read_s if profiles.device == "cpu" else max(forward_s, read_s)
    return MemberTime(
        member.name, estimate, steps * estimate.step_s, rank_images * seconds, member.epochs
    )
