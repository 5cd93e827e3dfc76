"""Counters for Prometheus, and drift against the bundle's evaluation; nothing of a single case."""

import logging
import math
import time
from bisect import bisect_left
from collections import Counter as Counted
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.checklist_advice import urgency_given
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer, Diagnosis
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.use_limits import NO_EXAMPLES, Examples
from skindx.monitor.monitor_file import SHIFTS, MonitorFile, shares_of_thresholds
from skindx.ui.diagnosis_pool import Busy, Diagnoser, Unanswered
from skindx.workers.worker_pool import PoolStatus

log = logging.getLogger(__name__)

P_VALUE_EDGES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
P_VALUE_SHARES = {high: high - low for low, high in pairwise((0.0, *P_VALUE_EDGES))}
"""Upper edge -> share; the OOD check's p-value is uniform."""


def class_shares(metrics: dict[str, Any] | None) -> dict[str, float]:
    """Return how often each class was put first in the bundle's evaluation; empty: unknown."""
    try:
        keys = [skin_class["key"] for skin_class in metrics["classes"]]  # type: ignore[index]
        confusion = metrics["confusion"]  # type: ignore[index]
        called = [sum(row[column] for row in confusion) for column in range(len(keys))]
        total = sum(called)
        return {key: n / total for key, n in zip(keys, called, strict=True)} if total else {}
    except (KeyError, TypeError, IndexError, ValueError):
        return {}


def score_shares(metrics: dict[str, Any] | None) -> dict[float, float]:
    """Return upper edge -> share of images whose highest probability lay in that bin."""
    try:
        bins = {row["high"]: row["n"] for row in metrics["reliability"]}  # type: ignore[index]
        total = sum(bins.values())
        return {float(high): n / total for high, n in bins.items()} if total else {}
    except (KeyError, TypeError, ValueError):
        return {}


def shift(seen: Sequence[float], expected: Sequence[float]) -> float:
    """Return the population stability index of two lists of shares; 0: the same, > 0.25: another.

    PSI = sum (s - e) ln(s / e), the symmetric Kullback-Leibler divergence (Jeffreys 1946); an
    empty bin counts as a thousandth, so that no logarithm is infinite.
    """
    floor = 1e-3
    pairs = [(max(s, floor), max(e, floor)) for s, e in zip(seen, expected, strict=True)]
    return sum((s - e) * math.log(s / e) for s, e in pairs)


WINDOW = 1000
"""Drift is measured on the last answers since the server started, at most so many."""
LEAST = 100
"""The index of fewer answers would be noise and is not given."""
_SECONDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 180)
_OUTCOMES = ("answered", "abstained", "refused", "bad-input", "busy", "failed", "left")
_ENDINGS: dict[type[Exception], str] = {
    **{Refused: "refused", Busy: "busy", Unanswered: "failed"},
    **{UserError: "bad-input", Exception: "failed"},
}
"""Outcome of a case by the first kind that its error is of."""
_SCAN_OUTCOMES = ("done", "failed", "bad-input", "busy", "deleted")
_SCAN_SECONDS = (5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800)


class ScanLoad(Protocol):
    """How many scans are at work and wait."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...


@dataclass(frozen=True)
class NoScanLoad:
    """The load of a server that takes no scans."""

    running: int = 0
    waiting: int = 0


class Metrics:
    """Counters of one server in a registry of their own."""

    def __init__(self, bundle: Bundle, version: str, status: Callable[[], PoolStatus]) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            Info,
            disable_created_metrics,
        )

        self.scans: Callable[[], ScanLoad] = NoScanLoad
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: CollectorRegistry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        Info("skindx_bundle", "The bundle that answers.", **here).info(
            {"name": bundle.spec.name, "version": version}
        )
        both = ["way", "outcome"]
        self._cases = Counter("skindx_cases", "Cases by way and outcome.", both, **here)
        self._seconds = Histogram(
            "skindx_case_seconds",
            "From the case to its answer, waiting included.",
            ["way"],
            buckets=_SECONDS,
            **here,
        )
        self._scans = Counter(
            "skindx_scans", "Scans of wide photos by way and outcome.", both, **here
        )
        for way in ("page", "api"):
            for counter, outcomes in ((self._cases, _OUTCOMES), (self._scans, _SCAN_OUTCOMES)):
                for outcome in outcomes:
                    counter.labels(way, outcome)
        self._scan_seconds = Histogram(
            "skindx_scan_seconds",
            "From a scan's photos to its result, waiting included.",
            ["way"],
            buckets=_SCAN_SECONDS,
            **here,
        )
        self._gates = Counter("skindx_refusals", "Refused photos by gate.", ["gate"], **here)
        self._tiers = Counter("skindx_urgency", "Answers by urgency.", ["tier"], **here)
        self._first = Counter("skindx_class_first", "Answers by first class.", ["key"], **here)
        for name, about, read in (
            ("workers", "Workers wanted.", lambda: status().workers),
            ("workers_ready", "Workers running.", lambda: status().ready),
            ("worker_restarts", "Workers started again.", lambda: status().restarts),
            ("queue_depth", "Cases that wait for a worker.", lambda: status().waiting),
            ("queue_capacity", "Cases that may wait.", lambda: status().capacity),
            ("scans_running", "Scans at work.", lambda: self.scans().running),
            ("scans_waiting", "Scans that wait.", lambda: self.scans().waiting),
        ):
            Gauge(f"skindx_{name}", about, **here).set_function(read)
        self.monitor: MonitorFile | None = None
        self._monitor_photos = Gauge("skindx_monitor_photos", "Photos of the monitor.", **here)
        self._monitor_levels = Gauge(
            "skindx_monitor_level",
            "Level of the monitor's test for a rise or fall over its threshold; 1 is an alarm.",
            ["stream", "way"],
            **here,
        )
        self._monitor_alarms = Gauge(
            "skindx_monitor_alarms",
            "Tests of the monitor that raised an alarm, by what has shifted.",
            ["shift"],
            **here,
        )
        measured = bundle.metrics()
        first = dict.fromkeys(bundle.taxonomy.keys, 0.0) | class_shares(measured)
        self._drift = {
            "class": _Drift("class_first", list(first), list(first.values()), here),
            "score": _Drift("top_probability", *_bins(score_shares(measured)), here),
            "familiarity": _Drift("familiarity", *_bins(P_VALUE_SHARES), here),
        }

    def scan_ended(self, way: str, outcome: str, seconds: float) -> None:
        """Count a scan; only one that was at work to its end has a time."""
        self._scans.labels(way, outcome).inc()
        if outcome in ("done", "failed"):
            self._scan_seconds.labels(way).observe(seconds)

    def text(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        from prometheus_client import generate_latest

        if self.monitor is not None:
            self._read_monitor(self.monitor)
        return generate_latest(self.registry)

    def _read_monitor(self, monitor: MonitorFile) -> None:
        """Set the gauges of the monitor; they stay as they are where its file cannot be read."""
        try:
            state = monitor.read(rows=False)
        except UserError as error:
            log.error("%s", error)
            return
        self._monitor_photos.set(state.levels.photos)
        for stream, way, share in shares_of_thresholds(state):
            self._monitor_levels.labels(stream, way).set(share)
        streams = state.head.streams
        alarms = Counted(streams[alarm.test % len(streams)].shift for alarm in state.alarms)
        for shift in SHIFTS:
            self._monitor_alarms.labels(shift).set(alarms[shift])

    def ended(self, way: str, outcome: str, seconds: float) -> None:
        self._cases.labels(way, outcome).inc()
        self._seconds.labels(way).observe(seconds)

    def refused(self, gate: str) -> None:
        self._gates.labels(gate).inc()

    def answered(self, diagnosis: Diagnosis) -> None:
        """Count what an answer says."""
        first = diagnosis.candidates[0]
        self._tiers.labels(urgency_given(diagnosis)).inc()
        self._first.labels(first.key).inc()
        self._drift["class"].see(first.key)
        self._drift["score"].see_number(first.probability)
        if diagnosis.familiarity is not None:
            self._drift["familiarity"].see_number(diagnosis.familiarity)


class CountingDiagnoser:
    """A Diagnoser that counts what another one answers, but for examples, which nobody has."""

    def __init__(
        self, diagnoser: Diagnoser, metrics: Metrics, way: str, examples: Examples = NO_EXAMPLES
    ) -> None:
        self._diagnoser, self._metrics, self._way = diagnoser, metrics, way
        self._examples = examples

    async def diagnose(self, case: Case) -> CaseAnswer:
        """Answer a case as the other one does."""
        if self._examples.find(case.photos):
            return await self._diagnoser.diagnose(case)
        start, outcome = time.perf_counter(), "left"
        try:
            answer = await self._diagnoser.diagnose(case)
            outcome = "abstained" if answer.diagnosis.abstained else "answered"
            self._metrics.answered(answer.diagnosis)
            return answer
        except Exception as error:
            outcome = next(name for kind, name in _ENDINGS.items() if isinstance(error, kind))
            for refusal in error.refusals if isinstance(error, Refused) else ():
                self._metrics.refused(refusal.gate)
            raise
        finally:
            self._metrics.ended(self._way, outcome, time.perf_counter() - start)


class _Drift:
    """One quantity of the last answers in bins, beside the shares that the bundle expects."""

    def __init__(
        self, name: str, bins: list[Any], expected: list[float], here: dict[str, Any]
    ) -> None:
        from prometheus_client import Gauge

        self._bins, self._expected = bins, expected
        self._last: deque[Any] = deque(maxlen=WINDOW)
        label = "key" if bins and isinstance(bins[0], str) else "le"
        known = sum(expected) > 0
        about = "Share of the last answers" if bins else "Unknown: the bundle was not measured"
        seen = Gauge(f"skindx_{name}_seen", f"{about}, by bin.", [label], **here)
        wanted = Gauge(f"skindx_{name}_expected", "The same when measured.", [label], **here)
        for edge, share in zip(bins, expected, strict=True):
            shown = edge if isinstance(edge, str) else f"{edge:.3g}"
            seen.labels(shown).set_function(partial(self._share, edge))
            if known:
                wanted.labels(shown).set(share)
        if known:
            Gauge(
                f"skindx_{name}_shift",
                f"Population stability index of the last {WINDOW} answers against the expected "
                "shares; above 0.25 the photos differ from those the bundle was made for. "
                f"NaN before {LEAST} answers.",
                **here,
            ).set_function(self._shift)

    def see(self, value: Any) -> None:
        self._last.append(value)

    def see_number(self, value: float) -> None:
        if self._bins:
            self.see(self._bins[min(bisect_left(self._bins, value), len(self._bins) - 1)])

    def _share(self, edge: Any) -> float:
        return self._last.count(edge) / len(self._last) if self._last else 0.0

    def _shift(self) -> float:
        if len(self._last) < LEAST:
            return math.nan
        counts = Counted(self._last)
        return shift([counts[edge] / len(self._last) for edge in self._bins], self._expected)


def _bins(shares: dict[float, float]) -> tuple[list[float], list[float]]:
    return list(shares), list(shares.values())
