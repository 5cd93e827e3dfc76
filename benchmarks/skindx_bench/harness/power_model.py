"""Watts from utilisation and clocks, calibrated on networks whose power was measured.

    P / P_full = b0 + b1 √u_c f_c + b2 u_m f_m        b ≥ 0

u_c and u_m are the shares of time in which the arithmetic and the memory set the pace, f_c and f_m
their clocks over the rated ones, P_full the power limit of the board. The sum of an idle part and
of one part a clock domain is the power model of Guerreiro et al. 2018 ("GPGPU Power Modeling for
Multi-Domain Voltage-Frequency Scaling", HPCA); the root is ours: power grows less than in
proportion to the arithmetic, because a board at its limit lowers its voltage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

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
