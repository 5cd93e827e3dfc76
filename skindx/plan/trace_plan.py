"""A plan of a trace and a cluster alone: no dataset, no settings, no torch.

A cluster may be a preset from data sheets: alpha is the latency of one message between two
processes of a training framework, of the order that the makers and the public measurements of
collectives show; beta is the nominal rate less a tenth for headers. The trace may be moved to
another device by what `skindx bench devices` measured on both: networks that both files have give
the ratio of the two, and how much it differs from network to network is the spread of a prediction
for one more network.
"""

import math
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.cost.cluster import Cluster, Link, Links, only_ranks
from skindx.core.cost.profile import Profile, Profiles, scaled
from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.plan.choice import PlannedMember, Workload
from skindx.plan.estimate import Machine, as_measured
from skindx.plan.plan import Plan, make
from skindx.plan.public_traces import read_profiles
from skindx.plan.search import PlanLimits
from skindx.training.config.optimizers import OptimizerKind, optimizer_kinds

_GBIT = 8 / 1e9 / 0.9
"""Seconds a byte at a nominal Gbit/s, a tenth of it lost to headers and acknowledgements."""

SPREAD = 0.35
"""Standard deviation over the mean that a network from a data sheet is believed to have."""

BETWEEN = {
    "1gbe": Link(alpha_s=1e-4, beta_s_per_byte=_GBIT, spread=SPREAD),
    "10gbe": Link(alpha_s=5e-5, beta_s_per_byte=_GBIT / 10, spread=SPREAD),
    "25gbe": Link(alpha_s=4e-5, beta_s_per_byte=_GBIT / 25, spread=SPREAD),
    "ib100": Link(alpha_s=5e-6, beta_s_per_byte=_GBIT / 100, spread=SPREAD),
}
"""Name -> link between nodes."""

INSIDE = {
    "pcie": Link(alpha_s=1e-5, beta_s_per_byte=1 / 12e9, spread=SPREAD),
    "nvlink": Link(alpha_s=5e-6, beta_s_per_byte=1 / 150e9, spread=SPREAD),
    "memory": Link(alpha_s=3e-5, beta_s_per_byte=1 / 3e9, spread=SPREAD),
}
"""Name -> link between two ranks of a node: PCIe 3 x16, NVLink 3, and gloo over loopback."""

FORM = "NETWORK:NODESxRANKS, with +INSIDE where a node has several ranks: 10gbe:8x4+nvlink"
_PRESET = re.compile(
    r"(?P<network>[a-z0-9]+)(?::(?P<nodes>\d{1,9})(?:x(?P<ranks>\d{1,9}))?)?(?:\+(?P<inside>\w+))?"
)


def preset(words: str) -> Cluster:
    """Return the cluster that some words name. Raises UserError for words that name none."""
    match = _PRESET.fullmatch(words.lower())
    names = (*BETWEEN, *INSIDE)
    if not match or match["network"] not in names or match["inside"] not in (None, *INSIDE):
        raise UserError(
            f"{words[:80]!r} is no file and no preset; give a cluster.yaml, or {FORM}. Networks: "
            f"{', '.join(BETWEEN)}; inside a node: {', '.join(INSIDE)}."
        )
    network = match["network"]
    nodes, ranks = int(match["nodes"] or 1), int(match["ranks"] or 1)
    if network in INSIDE:  # one node alone: nvlink:8
        nodes, ranks, inside = 1, nodes * ranks, INSIDE[network]
    else:
        inside = INSIDE[match["inside"] or "memory"]
    if nodes < 1 or ranks < 1:
        raise UserError(f"{words!r} has no ranks; a cluster needs one node of one rank or more.")
    gpus = match["inside"] in ("nvlink", "pcie") or network in ("nvlink", "pcie")
    made = {
        "name": words.lower(),
        "source": "preset",
        "nodes": nodes,
        "ranks_per_node": ranks,
        "backend": "nccl" if gpus or network == "ib100" else "gloo",
        "links": Links(between=BETWEEN.get(network), inside=inside),
    }
    return Cluster.parse(made, origin=f"preset {words!r}", expand=False)


ONE_NETWORK = 0.35
"""Standard deviation over the mean where only one network was measured on both devices."""

_LEAST, _MOST = 1e-9, 1e15
"""Of a rate, a second."""
_FINITE = 1e300
"""All figures are below; a whole number of JSON may be larger than any float."""


@dataclass(frozen=True)
class Ratio:
    """Seconds on the other device over seconds on this one."""

    compute: float
    """Geometric mean over networks."""
    memory: float
    """Of reading and writing tensors."""
    spread: float
    """Standard deviation, over the mean, of the ratio of one more network."""
    networks: tuple[str, ...]


def on_other_device(profiles: Profiles, here: Path, there: Path) -> Profiles:
    """Return profiles with the computing times that `there` would need.

    `here` and `there` are files of `skindx bench devices --json`: of the device that the trace was
    measured on, and of the other one. Reading and decoding images keep their times. Raises
    UserError for other files, and if the two have no training of a network in common.
    """
    ours, target = _read(here), _read(there)
    networks = tuple(
        _moved(profile, _ratio(ours, target, profile.precision, (here, there)))
        for profile in profiles.networks
    )
    kind = target["hardware"].get("kind", "cpu")
    return profiles.model_copy(
        update={
            "networks": networks,
            "device": "cpu" if kind == "cpu" else "cuda",
            "scaled_to": str(target["hardware"].get("device", there.stem))[:200],
        }
    )


def _ratio(
    ours: Mapping[str, Any], target: Mapping[str, Any], precision: str, files: tuple[Path, Path]
) -> Ratio:
    mine, theirs = _trainings(ours, precision), _trainings(target, precision)
    common = [key for key, work in mine.items() if key in theirs and theirs[key][1:] == work[1:]]
    if not common:
        raise UserError(
            f"{files[0]} and {files[1]} have no training of the same network and batch in "
            f"{precision}; run `skindx bench devices` with the same settings on both devices."
        )
    logs = [math.log(mine[key][0] / theirs[key][0]) for key in common]
    # The mean is uncertain too: one more network differs by both.
    apart = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs)) if len(logs) > 1 else ONE_NETWORK
    compute = math.exp(statistics.fmean(logs))
    ours_gb_s, target_gb_s = (_value(file, "memory bandwidth") for file in (ours, target))
    memory = ours_gb_s / target_gb_s if ours_gb_s and target_gb_s else compute
    return Ratio(compute, memory, apart, tuple(ours["parts"][key]["name"] for key in common))


def _trainings(written: Mapping[str, Any], precision: str) -> dict[str, tuple[float, int, float]]:
    """Return key -> (samples a second, samples and operations of a call) of networks."""
    result = {}
    for key, part in written["parts"].items():
        rate = _value(written, f"{key}: samples")
        wanted = (part["kind"], part["mode"], part["precision"])
        if rate and wanted == ("network", "training", precision):
            result[key] = (rate, part["samples"], part["flops"])
    return result


def _value(written: Mapping[str, Any], key: str) -> float | None:
    """Return a rate; None where there is none, or nothing that a device could have."""
    value = written["figures"].get(key, {"value": 0})["value"]
    return float(value) if _LEAST <= value <= _MOST else None


def _moved(profile: Profile, ratio: Ratio) -> Profile:
    # What an optimizer multiplies takes computing; all others go through the weights' memory.
    matrices = optimizer_kinds().get(profile.optimizer, OptimizerKind).matrices
    moved = scaled(profile, ratio.compute, update=ratio.compute if matrices else ratio.memory)
    local = {
        kind: work.model_copy(
            update={"base_s": work.base_s * ratio.memory, "merge_s": work.merge_s * ratio.memory}
        )
        for kind, work in profile.local.items()
    }
    rates = profile.rates and profile.rates.model_copy(
        update={
            "product_flop_s": profile.rates.product_flop_s / ratio.compute,
            "memory_bytes_s": profile.rates.memory_bytes_s / ratio.memory,
            "eigen_s": tuple((n, s * ratio.compute) for n, s in profile.rates.eigen_s),
            "layer_s": profile.rates.layer_s * ratio.compute,
        }
    )
    return moved.model_copy(
        update={"local": local, "rates": rates, "device_spread": min(ratio.spread, 10.0)}
    )


def _read(file: Path) -> Mapping[str, Any]:
    written = read_json(file)
    if not _fits(written):
        raise UserError(
            f"{file} was not written by `skindx bench devices --json`; measure the device with it."
        )
    return written


def _fits(written: Mapping[str, Any]) -> bool:
    if written.get("bench") != "devices":
        return False
    figures, parts, hardware = (written.get(key) for key in ("figures", "parts", "hardware"))
    if not (isinstance(figures, dict) and isinstance(parts, dict) and isinstance(hardware, dict)):
        return False
    fields = {"name", "kind", "mode", "precision", "samples", "flops"}
    if not all(isinstance(part, dict) and fields <= part.keys() for part in parts.values()):
        return False
    return all(
        isinstance(figure, dict)
        and isinstance(figure.get("value"), int | float)
        and abs(figure["value"]) < _FINITE
        for figure in figures.values()
    )


_LONGEST_NAME = 255
"""Bytes of a file's name."""


@dataclass(frozen=True)
class PlanRequest:
    """A request beside settings and dataset."""

    limits: PlanLimits
    trace: Path | None = None
    cluster: str | None = None
    """A file, or the name of a preset."""
    nodes: int | None = None
    ranks_per_node: int | None = None
    batch: int | None = None
    """Images of a rank: those of the step that a foreign trace shows, or others than measured."""
    one_rank_s: float | None = None
    devices: tuple[Path, Path] | None = None
    """Files of `skindx bench devices`: of the device of the trace, and of the one to plan for."""


def plan_of_trace(request: PlanRequest) -> Plan:
    """Price a step of a trace's first network; each rank has its batch. Raises UserError."""
    if request.trace is None or request.cluster is None:
        raise UserError(
            "give CONFIG and DATA, or --trace and --cluster; `skindx plan measure` writes the "
            "first, `skindx plan network` the second."
        )
    machine = machine_of(read_profiles(request.trace), read_cluster(request.cluster), request)
    profile = machine.profiles.networks[0]
    if request.batch and machine.profiles.source != "measured":
        profile = profile.model_copy(update={"batch": request.batch})
    member = PlannedMember(profile.name, profile, request.batch or profile.batch)
    return make(Workload((member,), weak=True), machine, request.limits)


def machine_of(profiles: Profiles, cluster: Cluster, request: PlanRequest) -> Machine:
    """Return the part of a cluster that is to be used, with times as measured on one rank."""
    cluster = only_ranks(
        cluster, request.nodes or cluster.nodes, request.ranks_per_node or cluster.ranks_per_node
    )
    if request.devices is not None:
        profiles = on_other_device(profiles, *request.devices)
    if request.one_rank_s is not None:
        cluster = Cluster.parse(
            {**cluster.model_dump(mode="json"), "one_rank_s": request.one_rank_s},
            origin="--one-rank-s",
        )
    if cluster.one_rank_s is not None:
        networks = tuple(as_measured(network, cluster.one_rank_s) for network in profiles.networks)
        profiles = profiles.model_copy(update={"networks": networks})
    return Machine(profiles, cluster)


def read_cluster(words: str) -> Cluster:
    """Read a cluster file, or return the preset of that name. Raises UserError."""
    path = Path(words)
    is_path = path.suffix in (".yaml", ".yml") or "/" in words
    if is_path or (len(words.encode()) <= _LONGEST_NAME and path.exists()):
        return Cluster.read(path)
    return preset(words)
