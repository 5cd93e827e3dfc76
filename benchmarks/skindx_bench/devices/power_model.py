"""Watts from utilisation and clocks, calibrated on networks whose power was measured.

    P / P_full = b0 + b1 √u_c f_c + b2 u_m f_m        b ≥ 0

u_c and u_m are the shares of time in which the arithmetic and the memory set the pace, f_c and f_m
their clocks over the rated ones, P_full the power limit of the board. The sum of an idle part and
of one part a clock domain is the power model of Guerreiro et al. 2018 ("GPGPU Power Modeling for
Multi-Domain Voltage-Frequency Scaling", HPCA); the root is ours: power grows less than in
proportion to the arithmetic, because a board at its limit lowers its voltage.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from skindx.core.errors import UserError
from skindx.energy import Energy

Floats = npt.NDArray[np.float64]

COVERAGE = 0.9
"""Share of networks' readings that an interval is made for."""


@dataclass(frozen=True)
class Readings:
    """Points of one measured table: n clock settings of networks on boards.

    `network_N` is what is left out together, `series_N` names the readings of one network by one
    program on one board, `power_N` is measured watts over the board's limit.
    """

    network_N: npt.NDArray[np.str_]
    series_N: npt.NDArray[np.str_]
    features_NF: Floats
    power_N: Floats

    def take(self, keep_N: npt.NDArray[np.bool_]) -> "Readings":
        """Return the readings for which `keep_N` is true."""
        return Readings(
            self.network_N[keep_N],
            self.series_N[keep_N],
            self.features_NF[keep_N],
            self.power_N[keep_N],
        )


def features(core_use: Floats, core: Floats, memory_use: Floats, memory: Floats) -> Floats:
    """Return (n, 3): uses are shares of time, clocks are shares of the rated ones."""
    return np.stack([np.ones_like(core_use), np.sqrt(core_use) * core, memory_use * memory], axis=1)


def fit(readings: Readings) -> Floats:
    """Return b by least squares of the relative error; every network counts as much as another."""
    weight_N = np.sqrt(network_weights(readings.network_N))
    scaled_NF = readings.features_NF * (weight_N / readings.power_N)[:, None]
    coefficients, _ = nnls(scaled_NF, weight_N)
    return np.asarray(coefficients, dtype=np.float64)


def log_errors(coefficients: Floats, readings: Readings) -> Floats:
    """Return log(measured / modelled) of each reading."""
    found: Floats = np.log(readings.power_N / (readings.features_NF @ coefficients))
    return found


def network_weights(network_N: npt.NDArray[np.str_]) -> Floats:
    """Return weights that sum to one for each network."""
    _, index_N, count_K = np.unique(network_N, return_inverse=True, return_counts=True)
    weights: Floats = 1.0 / count_K[index_N]
    return weights


def half_width(errors: Sequence[Floats]) -> float:
    """Return the width of a conformal interval in logarithms, from the errors of each network.

    Each network was left out when its errors were made. The quantile weighs networks alike: the
    next one is exchangeable with them, and the settings of one network are not independent.
    """
    weights = np.concatenate([np.full(len(error_n), 1 / len(error_n)) for error_n in errors])
    sizes = np.abs(np.concatenate(errors))
    order = np.argsort(sizes)
    reached = np.cumsum(weights[order]) / weights.sum()
    index = int(np.searchsorted(reached, COVERAGE - 1e-9))
    return float(sizes[order][min(index, len(sizes) - 1)])


@dataclass(frozen=True)
class PowerModel:
    """Coefficients b0, b1, b2, and the half width of the interval in logarithms."""

    coefficients: tuple[float, float, float]
    half_width: float
    calibrated_on: str
    arithmetic: tuple[float, float] = (0.0, np.inf)
    """Least and greatest √u_c f_c of the calibration; nothing is modelled outside of it."""

    def energy(
        self,
        full_w: float,
        seconds: float,
        core_use: float,
        memory_use: float,
        clocks: tuple[float, float] = (1.0, 1.0),
    ) -> Energy:
        """Return modelled joules of `seconds` on a board with a limit of `full_w` watts.

        Uses are shares of time from 0 to 1, clocks are shares of the rated ones.
        """
        arithmetic = float(np.sqrt(core_use)) * clocks[0]
        if not self.arithmetic[0] <= arithmetic <= self.arithmetic[1]:
            why = (
                f"√(share of arithmetic) × clock is {arithmetic:.2f}, outside the calibration's "
                f"{self.arithmetic[0]:.2f} to {self.arithmetic[1]:.2f}"
            )
            return Energy("unavailable", why=why)
        row = features(*(np.array([x]) for x in (core_use, clocks[0], memory_use, clocks[1])))
        joules = float((row @ np.array(self.coefficients))[0]) * full_w * seconds
        wide = float(np.exp(self.half_width))
        why = f"utilisation and a power limit of {full_w:g} W; calibrated on {self.calibrated_on}"
        return Energy("modelled", joules, (joules / wide, joules * wide), why=why)

    def as_dict(self) -> Mapping[str, object]:
        """Return plain values for a JSON file."""
        return {
            "coefficients": list(self.coefficients),
            "half_width": self.half_width,
            "calibrated_on": self.calibrated_on,
            "arithmetic": list(self.arithmetic),
        }


CALIBRATED = PowerModel(
    (0.0200, 1.1491, 0.0000),
    0.2986,
    "Caffe on NVIDIA's GTX 980, GTX 1080 Ti and Titan X",
    (0.1910, 0.9988),
)
"""What `skindx bench energy` fits to all of dlbench_dvfs, as in docs/measured/energy.json."""


NETWORKS = ("googlenet", "resnet", "vgg", "fc")


@dataclass(frozen=True)
class Board:
    """A board's power limit in W and rated clocks in MHz, from its maker's data sheet."""

    full_w: float
    core_mhz: float
    memory_mhz: float


BOARDS = {
    "titanX": Board(250, 1417, 5005),
    "gtx1080Ti": Board(250, 1480, 5505),
    "gtx980": Board(165, 1126, 3505),
}
"""Beginning of a file's name -> board; the convolutions' file names none and has the GTX 980's
clocks."""

_OFFSET_FROM = (1835.0, 4500.0)
"""Two files give clocks as offsets. From these clocks the seconds of VGG agree with those of the
file that gives its clocks in MHz."""


@dataclass(frozen=True)
class TraceRow:
    """One clock setting: what ran, clocks in MHz, seconds and watts."""

    series: str
    network: str
    board: Board
    core_mhz: float
    memory_mhz: float
    seconds: float
    watts: float


def read_traces(folder: Path) -> list[TraceRow]:
    """Return all rows. Raises UserError for a folder without them, and for a damaged file."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UserError(f"{folder} holds no .csv file; name the folder of dlbench_dvfs.")
    return [row for file in files for row in _rows(file)]


def is_network(network: str) -> bool:
    """Return whether this is a network, and not one convolution."""
    return network in NETWORKS


def use_of_time(rows: list[TraceRow]) -> tuple[Floats, Floats]:
    """Return the shares of each row's time that core and memory clock set; no watts are read.

    The rows are one series. The time is taken as t = a / core + b / memory + c with a, b, c >= 0,
    by least squares of the relative error: a part falls with each clock, and one with none.
    """
    parts_NK = np.array([(1 / row.core_mhz, 1 / row.memory_mhz, 1.0) for row in rows])
    seconds_N = np.array([row.seconds for row in rows])
    weights, _ = nnls(parts_NK / seconds_N[:, None], np.ones(len(rows)))
    parts_NK = parts_NK * weights
    share_NK = parts_NK / parts_NK.sum(axis=1, keepdims=True)
    return share_NK[:, 0], share_NK[:, 1]


def readings_of(rows: list[TraceRow]) -> Readings:
    """Return what the power model is fitted to."""
    series = np.array([row.series for row in rows])
    core_use, memory_use = np.zeros(len(rows)), np.zeros(len(rows))
    for name in np.unique(series):
        (index_n,) = np.nonzero(series == name)
        core_use[index_n], memory_use[index_n] = use_of_time([rows[i] for i in index_n])
    core = np.array([row.core_mhz / row.board.core_mhz for row in rows])
    memory = np.array([row.memory_mhz / row.board.memory_mhz for row in rows])
    return Readings(
        np.array([row.network for row in rows]),
        series,
        features(core_use, core, memory_use, memory),
        np.array([row.watts / row.board.full_w for row in rows]),
    )


def _rows(file: Path) -> Iterator[TraceRow]:
    names = [name for name in NETWORKS if name in file.stem]
    boards = [board for name, board in BOARDS.items() if file.stem.startswith(name)]
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for line in csv.DictReader(lines):
                network = names[0] if names else line["appName"]
                core, memory = float(line["coreF"]), float(line["memF"])
                if abs(memory) <= 1000 and boards and boards[0] is BOARDS["titanX"]:
                    core, memory = core + _OFFSET_FROM[0], memory + _OFFSET_FROM[1]
                seconds = line["time/s"] if "time/s" in line else float(line["time/us"]) / 1e6
                row = TraceRow(
                    file.stem if names else network,
                    network,
                    boards[0] if boards else BOARDS["gtx980"],
                    core,
                    memory,
                    float(seconds),
                    float(line["power/W"]),
                )
                if min(row.core_mhz, row.memory_mhz, row.seconds, row.watts) <= 0:
                    raise ValueError("clocks, seconds and watts must be above zero")
                yield row
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file} is no file of dlbench_dvfs ({error}); download it again."
        ) from None
