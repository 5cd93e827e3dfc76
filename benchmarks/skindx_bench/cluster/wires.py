"""Which exchange on which wires: what `skindx plan` says of published layers on usual networks.

Every figure is a prediction: the share of a step in which a GPU computes, and what the plan takes.
"""

from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx_bench.cluster.plan import synthetic_resnet50
from skindx_bench.cluster.public_traces import read_pipedream
from skindx_bench.harness.result import PREDICTIONS, Figure, Result
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Estimate, Machine
from skindx_methods.plan.interval import bounds_s
from skindx_methods.plan.plan import make, preset
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.search import PlanLimits, search


class Config(Settings):
    """Networks, wires and exchanges of the table."""

    traces: Path | None = None
    """Folder with pipedream_profiles; none: a ResNet-50 whose layers' times are made up."""
    networks: tuple[str, ...] = ("resnet50", "vgg16")
    speeds: tuple[Annotated[float, Field(gt=0)], ...] = (1.0, 8.0)
    """How many times as fast as in the profile a GPU computes."""
    wires: tuple[str, ...] = Field(
        (
            "nvlink:8",
            "pcie:4",
            "1gbe:8x1",
            "10gbe:8x1",
            "25gbe:8x4+nvlink",
            "ib100:8x4+nvlink",
        ),
        min_length=1,
    )
    """Presets of `skindx plan`: links between nodes, nodes x ranks, links inside a node."""
    exchanges: tuple[str, ...] = (
        "dense",
        "fused",
        "hierarchical",
        "fused+bf16",
        "powersgd",
        "gtopk",
        "local",
    )


SMALLEST = ("speeds=[1]", "wires=[nvlink:2, 10gbe:2]", "exchanges=[dense, fused]")


def run(settings: Config) -> Result:
    """Plan each network on each of the wires, by each exchange and freely."""
    rows: dict[str, dict[str, Any]] = {}
    figures: dict[str, Figure] = {}
    traced = settings.networks if settings.traces else ("resnet50",)
    for network, speed, wires in product(traced, settings.speeds, settings.wires):
        row, figure = _planned(network, speed, wires, settings)
        rows[f"{network} x {speed:g}: {wires}"] = row
        figures[f"{network}_{speed:g}_{wires}"] = figure
    source = _PIPEDREAM if settings.traces else _MADE_UP
    return Result("wires", figures, notes=(source, *_NOTES), models=rows, headings=PREDICTIONS)


def _planned(
    network: str, speed: float, wires: str, settings: Config
) -> tuple[dict[str, Any], Figure]:
    """Return what a plan says of one network on some wires, and the share of what it takes."""
    profiles = _profiles(network, settings.traces, speed)
    profile, machine = profiles.networks[0], Machine(profiles, preset(wires))
    work = Workload((PlannedMember(network, profile, profile.batch),), weak=True)
    alone = search(work, Machine(profiles, preset("nvlink:1")), PlanLimits()).chosen.first.step_s

    def share(planned: Estimate) -> tuple[float, float, float]:
        low_s, high_s = bounds_s(planned)
        return alone / planned.step_s, alone / high_s, min(1.0, alone / low_s)

    shares = {}
    for exchange in settings.exchanges:
        limits = PlanLimits(strategy=exchange, extrapolate=True)
        with suppress(UserError):  # such as an exchange that needs several ranks a node
            shares[exchange] = share(search(work, machine, limits).chosen.first)
    exact = make(work, machine, PlanLimits(extrapolate=True)).chosen
    lossy = make(work, machine, PlanLimits(lossy=True, extrapolate=True)).chosen
    row = {
        "network": network,
        "speed": speed,
        "wires": wires,
        "images": profile.batch,
        "shares": shares,
        "exact": exact.choice.label,
        "lossy": lossy.choice.label,
    }
    value, *spread = share(exact.first)
    return row, Figure(value, "of a step", 1, (spread[0], spread[1]))


def _profiles(network: str, traces: Path | None, speed: float) -> Profiles:
    if traces is None:
        return Profiles(networks=(synthetic_resnet50(),), device="cuda")
    graph = traces / "pipedream_profiles" / f"{network}.graph.txt"
    as_traced = sum(
        (one.forward_s or 0.0) + (one.backward_s or 0.0)
        for one in read_pipedream(graph).networks[0].layers
    )
    return read_pipedream(graph, as_traced / speed)


_PIPEDREAM = (
    "Layers: PipeDream's profiles of a V100 in single precision (msr-fiddle/pipedream), and the "
    "same on a GPU that computes eight times as fast, as a newer one does in bf16."
)
_MADE_UP = "Layers: a ResNet-50 of the right shapes whose times are made up."
_NOTES = (
    "Wires: presets from data sheets, believed to within 35 % either way (one standard deviation). "
    "No row was compared with a cluster of this kind; predictions were, on others.",
    "The figure is the share of a step in which a GPU computes, 1 where all communication is "
    "hidden, with its 90 % interval. A plan takes what is not surely slower than the fastest and "
    "differs least from the defaults; it takes what changes the gradient only where --lossy allows "
    "it and it is surely faster.",
)
