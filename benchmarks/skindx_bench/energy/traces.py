"""Reads dlbench_dvfs: seconds and watts of Caffe on NVIDIA boards at clock settings."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from skindx.core.errors import UserError
from skindx_bench.harness.power_model import Floats, Readings, features

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
class Row:
    """One clock setting: what ran, clocks in MHz, seconds and watts."""

    series: str
    network: str
    board: Board
    core_mhz: float
    memory_mhz: float
    seconds: float
    watts: float


def read_traces(folder: Path) -> list[Row]:
    """Return all rows. Raises UserError for a folder without them, and for a damaged file."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UserError(f"{folder} holds no .csv file; name the folder of dlbench_dvfs.")
    return [row for file in files for row in _rows(file)]


def is_network(network: str) -> bool:
    """Return whether this is a network, and not one convolution."""
    return network in NETWORKS


def use_of_time(rows: list[Row]) -> tuple[Floats, Floats]:
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


def readings_of(rows: list[Row]) -> Readings:
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


def _rows(file: Path) -> Iterator[Row]:
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
                row = Row(
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
