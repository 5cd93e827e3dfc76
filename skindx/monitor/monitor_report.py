"""What a monitor says: each alarm in words with what to do, as text, and charts in SVG."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.monitor.drift_detector import RUN_LENGTH, Shift
from skindx.monitor.monitor_file import LEARNED, Alarm, MonitorState

SHIFTS: dict[Shift, str] = {
    "camera": "The camera, the light or the image software is another one",
    "kind": "The photos are of another kind than the reference: another modality, site or device",
    "prevalence": "The share of urgent conditions is another one",
    "answer": "The answers are more or less certain than for the reference",
}
TO_DO: dict[Shift, str] = {
    "camera": "look at recent photos and at the camera's focus, exposure and white balance",
    "kind": "look at recent photos: are they what the bundle is for?",
    "prevalence": "check who is sent here now, and give the new mix to `skindx serve --prevalence`",
    "answer": "look at recent photos",
}
NEXT = (
    "Then measure with `skindx evaluate BUNDLE LOCAL`, on local images with confirmed labels; "
    "`skindx adapt` fits the bundle to them. If the change is intended, "
    "`skindx monitor FILE --accept` makes the recent photos the reference."
)
_POINTS = 60

# S = streams, K = photos that are kept, B = points of a chart


def words_of(state: MonitorState, alarm: Alarm) -> str:
    """Return what an alarm says, in one sentence."""
    streams = state.head.streams
    stream = streams[alarm.test % len(streams)]
    moved = stream.rises if alarm.test < len(streams) else stream.falls
    again = f", {alarm.count} times until photo {alarm.last}" if alarm.count > 1 else ""
    return (
        f"Since about photo {alarm.since}, {moved} ({stream.key}); alarm at photo {alarm.first} "
        f"on {alarm.day}{again}."
    )


def shift_of(state: MonitorState) -> Shift | None:
    """Return the shift that explains the alarms: the one of the first alarm; None: no alarm."""
    streams = state.head.streams
    return streams[state.alarms[0].test % len(streams)].shift if state.alarms else None


def reference_words(state: MonitorState) -> str:
    """Return what the photos are compared with."""
    head, size = state.head, len(state.reference)
    if state.detector is None:
        return (
            f"The first {LEARNED} photos become the reference ({state.levels.photos} so far), "
            f"since {head.no_reference}."
        )
    if head.no_reference:
        return f"The reference are {size} photos that were served, since {head.no_reference}."
    return f"The reference are {size} images, one a lesion."


def summary(state: MonitorState) -> list[str]:
    """Return the state in sentences: what is compared, each alarm, what to do."""
    lines = [
        f"Bundle {state.head.bundle}: {state.levels.photos} photos"
        + (f", the last on {state.day}." if state.day else "."),
        reference_words(state),
    ]
    shift = shift_of(state)
    if shift is None:
        rate = f"a false alarm is meant to come once in {RUN_LENGTH:,} photos or more"
        return [*lines, f"No alarm; {rate}."]
    lines.append(f"{SHIFTS[shift]}: {TO_DO[shift]}. {NEXT}")
    return [*lines, *(words_of(state, alarm) for alarm in state.alarms)]


def shares_of_thresholds(state: MonitorState) -> Iterator[tuple[str, str, float]]:
    """Yield each stream, rise or fall, and its level over its threshold; 1 is an alarm."""
    keys = [stream.key for stream in state.head.streams]
    shares_A = np.zeros(2 * len(keys))
    if state.detector is not None:
        shares_A = state.levels.level_A / state.detector.thresholds_A
    for test, share in enumerate(shares_A):
        way = "rise" if test < len(keys) else "fall"
        yield keys[test % len(keys)], way, round(float(share), 4)


@dataclass(frozen=True)
class Chart:
    """Means of one stream over the photos that are kept, in standard deviations, as a line."""

    title: str
    line: str
    """Points of an SVG polyline, 0..300 across and 0..60 down; the middle is the reference."""
    last: float
    """The last mean."""
    level: float
    """The higher of both levels over their thresholds."""
    alarm: bool


def charts(state: MonitorState) -> list[Chart]:
    """Return a chart for each stream; none before there is a reference and a photo."""
    if state.detector is None or not len(state.numbers_KN):
        return []
    streams = state.head.streams
    scores_KS = state.detector.scores(state.numbers_KN[:, : len(streams)])
    points = max(1, min(_POINTS, len(scores_KS) // 10))
    means_BS = np.stack([part_KS.mean(0) for part_KS in np.array_split(scores_KS, points)])
    levels = np.array([share for *_, share in shares_of_thresholds(state)]).reshape(2, -1).max(0)
    alarmed = {alarm.test % len(streams) for alarm in state.alarms}
    return [
        Chart(
            f"{stream.key}: {stream.rises} / {stream.falls}",
            _line(means_BS[:, n]),
            float(means_BS[-1, n]),
            float(levels[n]),
            n in alarmed,
        )
        for n, stream in enumerate(streams)
    ]


def class_rows(state: MonitorState) -> list[tuple[str, float, float]]:
    """Return each class with its mean probability, recent and of the reference."""
    if state.detector is None or not len(state.numbers_KN):
        return []
    first = len(state.head.streams)
    recent_C = state.numbers_KN[-LEARNED:, first:].mean(axis=0)
    reference_C = state.reference[:, first:].mean(axis=0)
    rows = zip(state.head.classes, recent_C, reference_C, strict=True)
    return [(key, float(recent), float(known)) for key, recent, known in rows]


def _line(means_B: NDArray[np.floating]) -> str:
    across_B = np.linspace(0, 300, len(means_B)) if len(means_B) > 1 else np.array([300.0])
    down_B = 30 - 14 * np.clip(means_B, -2, 2)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across_B, down_B, strict=True))
