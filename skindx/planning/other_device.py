"""Computing times of a trace on another device, from what `skindx bench devices` measured on both.

Networks that both files have give the ratio of the two devices. How much that ratio differs from
network to network is the spread of a prediction for one more network.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.planning.profile import Profile, Profiles
from skindx.planning.scaling import scaled

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
    ours, others = _read(here), _read(there)
    networks = tuple(
        _moved(profile, _ratio(ours, others, profile.precision, (here, there)))
        for profile in profiles.networks
    )
    kind = others["hardware"].get("kind", "cpu")
    return profiles.model_copy(
        update={
            "networks": networks,
            "device": "cpu" if kind == "cpu" else "cuda",
            "scaled_to": str(others["hardware"].get("device", there.stem))[:200],
        }
    )


def _ratio(
    ours: Mapping[str, Any], others: Mapping[str, Any], precision: str, files: tuple[Path, Path]
) -> Ratio:
    mine, theirs = _trainings(ours, precision), _trainings(others, precision)
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
    ours_gb_s, others_gb_s = (_value(file, "memory bandwidth") for file in (ours, others))
    memory = ours_gb_s / others_gb_s if ours_gb_s and others_gb_s else compute
    return Ratio(compute, memory, apart, tuple(ours["parts"][key]["name"] for key in common))


def _trainings(written: Mapping[str, Any], precision: str) -> dict[str, tuple[float, int, float]]:
    """Return key -> (samples a second, samples and operations of a call) of networks."""
    found = {}
    for key, part in written["parts"].items():
        rate = _value(written, f"{key}: samples")
        wanted = (part["kind"], part["mode"], part["precision"])
        if rate and wanted == ("network", "training", precision):
            found[key] = (rate, part["samples"], part["flops"])
    return found


def _value(written: Mapping[str, Any], key: str) -> float | None:
    """Return a rate; None where there is none, or nothing that a device could have."""
    value = written["figures"].get(key, {"value": 0})["value"]
    return float(value) if _LEAST <= value <= _MOST else None


def _moved(profile: Profile, ratio: Ratio) -> Profile:
    moved = scaled(profile, ratio.compute, update=ratio.memory)
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
