"""Guidelines for workers, batch and servers (Zou et al., arXiv 1709.06622)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Guideline:
    """A piece of advice with the formula that it comes from."""

    what: str
    answer: str
    formula: str


def efficiency(overhead_ratio: float, ranks: int) -> float:
    """Return the efficiency of `ranks` (1 + R) / (1 + G R); R = overhead / computing of one."""
    return (1 + overhead_ratio) / (1 + ranks * overhead_ratio)


def ranks_that_pay(overhead_ratio: float, wanted: float) -> int:
    """Return the most ranks whose efficiency is at least `wanted`; 0: there is no limit.

    From e = (1 + R) / (1 + G R): G = (1 + R - e) / (e R).
    """
    if overhead_ratio <= 0:
        return 0
    return max(1, math.floor((1 + overhead_ratio - wanted) / (wanted * overhead_ratio) + 1e-9))


def largest_overhead(ranks: int, wanted: float) -> float:
    """Return the R up to which `ranks` have an efficiency of `wanted`: (1 - e) / (e G - 1)."""
    room = wanted * ranks - 1
    return math.inf if room <= 0 else (1 - wanted) / room


def servers(parameter_bytes: float, workers: int, bytes_per_s: float, compute_s: float) -> int:
    """Return how many parameter servers hide the traffic: ⌈2 S_p N_w / (B_ps T_C)⌉."""
    return math.ceil(2 * parameter_bytes * workers / (bytes_per_s * compute_s))
