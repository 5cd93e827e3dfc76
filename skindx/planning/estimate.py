"""Time of a step under a choice, with its uncertainty."""

from dataclasses import dataclass, field
from functools import cached_property

from skindx.planning import second_order
from skindx.planning.choice import Choice
from skindx.planning.cluster import Cluster
from skindx.planning.flow import Feeding, Step
from skindx.planning.interval import Simulated
from skindx.planning.memory import FARTHEST, Memory, memory_of
from skindx.planning.network import Network
from skindx.planning.profile import Profile, Profiles
from skindx.planning.scaling import compute_scale, scaled
from skindx.planning.schedule import Schedule
from skindx.planning.strategies.strategy import Load
from skindx.planning.trace import Trace

NETWORK_FARTHEST = 10.0
RANKS_FARTHEST = 4.0


@dataclass(frozen=True)
class Machine:
    """The machine of a training, and the measurements on it."""

    profiles: Profiles
    cluster: Cluster

    @cached_property
    def networks(self) -> dict[tuple[int, int], Network]:
        """Nodes and ranks a node -> the network among them."""
        return {}

    def network(self, nodes: int, ranks_per_node: int) -> Network:
        """Return the network among some of the nodes."""
        key = (nodes, ranks_per_node)
        if key not in self.networks:
            self.networks[key] = Network(self.cluster, nodes, ranks_per_node)
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
    def schedule(self) -> Schedule:
        """The communication of a step."""
        return self.simulated.schedule

    @property
    def beyond(self) -> tuple[str, ...]:
        """Inputs outside the calibration, in sentences; empty: none."""
        return tuple(self.outside)

    @cached_property
    def half_width(self) -> float:
        """Of the 90 % interval, over the prediction; simulated when it is asked for."""
        return self.simulated.half_width(self.step_s, self.outside)

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.step.seconds

    @property
    def low_s(self) -> float:
        """Of the 90 % interval."""
        return self.step_s / (1 + self.half_width)

    @property
    def high_s(self) -> float:
        """Of the 90 % interval."""
        return self.step_s * (1 + self.half_width)

    @property
    def images_per_s(self) -> float:
        """Over all ranks."""
        return self.choice.batch / self.step_s


def as_measured(profile: Profile, one_rank_s: float | None) -> Profile:
    """Scale a trace to a measured step on one rank; a forward that it lacks is the rest."""
    if one_rank_s is None:
        return profile
    layers = profile.layers
    forward_s = sum(layer.forward_s or 0.0 for layer in layers)
    backward_s = sum(layer.backward_s or 0.0 for layer in layers)
    if not forward_s and backward_s + profile.update_s < one_rank_s:
        rest = one_rank_s - backward_s - profile.update_s
        first = layers[0].model_copy(update={"forward_s": rest})
        return profile.model_copy(update={"layers": (first, *layers[1:])})
    factor = one_rank_s / max(1e-12, forward_s + backward_s + profile.update_s)
    return scaled(profile, factor, update=factor)


def estimate(profile: Profile, choice: Choice, machine: Machine) -> Estimate:
    """Return what `choice` takes for a step of a network. Raises UserError."""
    network = machine.network(choice.nodes, choice.ranks_per_node)
    if choice.side_by_side > 1:
        network = machine.network(1, 1)
    corrections = machine.cluster.corrections
    compute = corrections["compute"].factor if "compute" in corrections else 1.0
    communicate = corrections["communicate"].factor if "communicate" in corrections else 1.0
    scale = compute_scale(profile, choice.piece) * compute
    trace = profile.trace(scale=scale)
    if choice.checkpointing:
        trace = _computed_again(trace, profile)
    load = Load(trace, profile, machine.profiles.device, choice.piece, choice.accumulate, compute)
    schedule = choice.strategy.schedule(load, network)
    more_bytes = 0.0
    if choice.kfac:
        second = second_order.price(
            choice.kfac,
            profile,
            network,
            choice.piece * choice.accumulate,
            choice.accumulate * sum(trace.backward_s),
        )
        schedule, more_bytes = second.added_to(schedule), second.memory_bytes
    if communicate != 1.0:
        schedule = schedule.scaled(communicate)
    images = choice.piece * choice.accumulate
    feeding = Feeding(
        read_s=images * profile.read_s / machine.profiles.cores, copy_s=images * profile.copy_s
    )
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
        more_bytes=more_bytes,
    )
    beyond = _beyond(choice, machine, network, memory)
    return Estimate(choice, simulated.run(), simulated, memory, beyond)


def _computed_again(trace: Trace, profile: Profile) -> Trace:
    """Return a trace whose backward computes forward once more, spread over its tensors."""
    measured = profile.checkpointing
    more_s = trace.forward_s
    if measured:
        plain_s = (profile.compute_s * compute_scale(profile, measured.batch)) or 1e-12
        more_s = max(0.0, measured.compute_s / plain_s - 1) * (
            trace.forward_s + sum(trace.backward_s)
        )
    total = sum(trace.backward_s) or 1.0
    return trace.model_copy(
        update={"backward_s": tuple(seconds * (1 + more_s / total) for seconds in trace.backward_s)}
    )


def _beyond(choice: Choice, machine: Machine, network: Network, memory: Memory) -> dict[str, float]:
    """Return what lies outside the calibration: sentence -> how far over what was measured."""
    found: dict[str, float] = {}
    cluster = machine.cluster
    if memory.measured and memory.extrapolated > FARTHEST:
        found[
            f"a piece of {choice.piece} images is {memory.extrapolated:.1f} times the largest "
            "batch whose memory was measured"
        ] = memory.extrapolated
    if network.ranks == 1:
        return found
    fastest = cluster.fastest_beta_s_per_byte
    beta = network.between.beta_s_per_byte if network.nodes > 1 else network.inside.beta_s_per_byte
    if fastest and beta < fastest / NETWORK_FARTHEST:
        found[
            f"a link of {beta:.3g} s a byte is {fastest / beta:.0f} times as fast as any that was "
            "measured"
        ] = fastest / beta
    if cluster.source == "measured" and cluster.collectives:
        most = max(known.ranks for known in cluster.collectives)
        if network.ranks > RANKS_FARTHEST * most:
            found[
                f"{network.ranks} ranks are more than {RANKS_FARTHEST:g} times the {most} measured"
            ] = network.ranks / most
    return found
