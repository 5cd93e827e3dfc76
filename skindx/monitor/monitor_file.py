"""The file of a monitor: SQLite, written by all workers of any number of servers.

It holds numbers alone: no photo, no name, no hash, no fact about a person, no time but the day. A
photo is one transaction in the write-ahead log, so that a killed process loses that photo at most,
and it has a fixed size: the last KEPT photos, and one row for each test that raised an alarm. What
it says: each alarm in words with what to do, as text, and charts in SVG.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.core.private_files import new_private
from skindx.core.untrusted import MALFORMED
from skindx.monitor.drift_detector import (
    RUN_LENGTH,
    URGENT,
    DriftDetector,
    DriftLevels,
    Floats,
    Shift,
    Singles,
    Stream,
)

if TYPE_CHECKING:
    from skindx.monitor.photo_numbers import PhotoNumbers


KEPT = 5_000
"""Photos whose numbers the file keeps; the charts show them."""
LEARNED = 500
"""Number of photos that become the reference where the bundle has none."""
LEAST, MOST = 200, 2_000
"""Fewest and most reference images."""
_WAIT_S = 30
_FORMAT = 1

# S = streams, C = classes, A = tests, K = photos that are kept


@dataclass(frozen=True)
class Alarm:
    """What one test says: `since` is the estimated photo of the change."""

    test: int
    since: int
    first: int
    last: int
    count: int
    day: str


@dataclass(frozen=True)
class MonitorHead:
    """What a file is of: a bundle, its classes and the streams that are tested."""

    bundle: str
    version: str
    """See `bundle_version`."""
    streams: tuple[Stream, ...]
    classes: tuple[str, ...]
    no_reference: str = ""
    """Why the reference is not the bundle's; empty: it is its calibration images."""

    @property
    def urgent(self) -> int:
        """The stream of urgent risks; -1: there is none."""
        keys = [stream.key for stream in self.streams]
        return keys.index(URGENT.key) if URGENT.key in keys else -1


@dataclass(frozen=True)
class MonitorState:
    """A file's content at one moment."""

    head: MonitorHead
    levels: DriftLevels
    detector: DriftDetector | None
    """The detector of drift; None before LEARNED photos if the bundle has no reference."""
    reference: Singles
    alarms: tuple[Alarm, ...]
    numbers_KN: Singles
    """Streams, then classes, of the photos that are kept, oldest first."""
    day: str
    """Day of the last photo."""


class MonitorFile:
    """One file, opened by `create` or `read`; each call opens the database anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path, numbers: "PhotoNumbers", version: str) -> Self:
        """Open a bundle's file, or create it.

        Raises UserError for a file of another bundle, and for one that is no monitor's.
        """
        monitor = cls(path)
        if not path.exists():
            head = MonitorHead(
                numbers.bundle.spec.name, version, numbers.streams, numbers.bundle.taxonomy.keys
            )
            reference, why = numbers.reference()
            if reference is not None and len(reference) < LEAST:
                few = f"the bundle has {len(reference)} lesions to calibrate on, fewer than {LEAST}"
                reference, why = None, few
            monitor._create(MonitorHead(**vars(head) | {"no_reference": why}), reference)
        other = monitor.read().head
        if other.version != version:
            raise UserError(
                f"{path} is the monitor file of another bundle ({other.bundle}, version "
                f"{other.version[:16]}), so its numbers cannot be used for this bundle "
                f"({version[:16]}); give another file with --monitor."
            )
        return monitor

    def add(self, numbers_QN: Singles) -> None:
        """Add photos, test each, and keep the alarms. Raises UserError where it cannot be done."""
        with self._opened(write=True) as database:
            state = _state(database, rows=False)
            if state.detector is None and state.levels.photos >= LEARNED:
                kept_KN = _kept(database, len(numbers_QN[0]))
                state = _with_reference(database, state, kept_KN[:LEARNED])
            _add(database, state, numbers_QN)

    def accept(self) -> int:
        """Make the photos that are kept the reference, forget the alarms; return how many.

        Raises UserError for fewer than LEARNED.
        """
        with self._opened(write=True) as database:
            state = _state(database)
            if len(state.numbers_KN) < LEARNED:
                raise UserError(
                    f"{self._path} has only {len(state.numbers_KN)} photos, but a reference needs "
                    f"{LEARNED}; run the server until it has answered more photos, then accept "
                    "them as the reference."
                )
            recent_KN = state.numbers_KN[-MOST:]
            _with_reference(database, state, recent_KN)
            database.execute("DELETE FROM alarms")
        return len(recent_KN)

    def read(self, *, rows: bool = True) -> MonitorState:
        """Return the content, with the numbers of photos where they are asked for.

        Raises UserError for a file that is no monitor's.
        """
        with self._opened(write=False) as database:
            return _state(database, rows=rows)

    def _create(self, head: MonitorHead, reference: Singles | None) -> None:
        """Write a new file beside its place and link it there: of two servers one is first."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        width = len(head.streams) + len(head.classes)
        kept = np.zeros((0, width), dtype=np.float32) if reference is None else reference[:MOST]
        row = (_written(head), 0, *_blobs(DriftLevels.start(2 * len(head.streams))), b"", b"", "")
        try:
            new_private(temporary).close()
            with closing(sqlite3.connect(temporary)) as database:
                database.executescript(_SCHEMA)
                database.execute("INSERT INTO monitor VALUES (1, ?, ?, ?, ?, ?, ?, ?)", row)
                if len(kept):
                    _with_reference(database, _state(database), kept)
                database.commit()
            os.link(temporary, self._path)
        except FileExistsError:
            pass
        except (OSError, sqlite3.Error) as error:
            raise UserError(
                f"the monitor file {self._path} cannot be created ({error}); give a file in a "
                "folder where you may write."
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _opened(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        if not self._path.is_file():
            raise UserError(
                f"the monitor file {self._path} does not exist; run `skindx serve` with --monitor "
                "to create it."
            )
        try:
            with closing(
                sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
            ) as database:
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield database
                database.execute("COMMIT")
        except (sqlite3.Error, *MALFORMED) as error:
            raise UserError(
                f"{self._path} cannot be used as a monitor file ({error}); give another file."
            ) from None


_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE monitor (id INTEGER PRIMARY KEY CHECK (id = 1), head TEXT NOT NULL,
  photos INTEGER NOT NULL, levels BLOB NOT NULL, since BLOB NOT NULL, thresholds BLOB NOT NULL,
  reference BLOB NOT NULL, day TEXT NOT NULL);
CREATE TABLE photos (number INTEGER PRIMARY KEY, day TEXT NOT NULL, numbers BLOB NOT NULL);
CREATE TABLE alarms (test INTEGER PRIMARY KEY, since INTEGER NOT NULL, first INTEGER NOT NULL,
  last INTEGER NOT NULL, count INTEGER NOT NULL, day TEXT NOT NULL);
"""


def _written(head: MonitorHead) -> str:
    plain = vars(head) | {"streams": [vars(stream) for stream in head.streams], "format": _FORMAT}
    return json.dumps(plain)


def _read_head(text: str) -> MonitorHead:
    plain: dict[str, Any] = json.loads(text)
    if plain.pop("format") != _FORMAT:
        raise ValueError("it was written by a newer version of skindx")
    streams = tuple(Stream(**stream) for stream in plain.pop("streams"))
    return MonitorHead(streams=streams, classes=tuple(plain.pop("classes")), **plain)


def _state(database: sqlite3.Connection, *, rows: bool = True) -> MonitorState:
    row = database.execute("SELECT * FROM monitor").fetchone()
    if row is None:
        raise ValueError("it is empty")
    _, text, photos, levels, since, thresholds, reference, day = row
    head = _read_head(text)
    streams = len(head.streams)
    width = streams + len(head.classes)
    reference_NK = np.frombuffer(reference, dtype=np.float32).reshape(-1, width)
    thresholds_A = np.frombuffer(thresholds)
    detector = None
    if len(reference_NK):
        sorted_SN = np.sort(reference_NK[:, :streams].T.astype(np.float64), axis=1)
        detector = DriftDetector(sorted_SN, head.urgent, thresholds_A)
    tests = DriftLevels(photos, np.frombuffer(levels), np.frombuffer(since, dtype=np.int64))
    if any(len(part) != 2 * streams for part in (tests.level_A, tests.since_A)) or (
        detector is not None and len(thresholds_A) != 2 * streams
    ):
        raise ValueError("its tables contradict each other")
    alarms = database.execute("SELECT * FROM alarms ORDER BY first, test").fetchall()
    kept = _kept(database, width) if rows else np.zeros((0, width), dtype=np.float32)
    return MonitorState(
        head, tests, detector, reference_NK, tuple(Alarm(*alarm) for alarm in alarms), kept, day
    )


def _kept(database: sqlite3.Connection, width: int) -> Singles:
    rows = database.execute("SELECT numbers FROM photos ORDER BY number").fetchall()
    return np.frombuffer(b"".join(row for (row,) in rows), dtype=np.float32).reshape(-1, width)


def _blobs(levels: DriftLevels) -> tuple[bytes, bytes]:
    return levels.level_A.astype(np.float64).tobytes(), levels.since_A.astype(np.int64).tobytes()


def _with_reference(
    database: sqlite3.Connection, state: MonitorState, reference_NK: Singles
) -> MonitorState:
    """Fit the tests on a reference, and start them again."""
    streams = len(state.head.streams)
    detector = DriftDetector.fit(reference_NK[:, :streams], state.head.urgent)
    start = DriftLevels.start(2 * streams)
    photos = state.levels.photos
    levels = DriftLevels(photos, start.level_A, start.since_A + photos)
    database.execute(
        "UPDATE monitor SET levels = ?, since = ?, thresholds = ?, reference = ?",
        (*_blobs(levels), detector.thresholds_A.tobytes(), reference_NK.tobytes()),
    )
    return MonitorState(state.head, levels, detector, reference_NK, (), state.numbers_KN, state.day)


def _add(database: sqlite3.Connection, state: MonitorState, numbers_QN: Singles) -> None:
    streams, levels, day = len(state.head.streams), state.levels, f"{datetime.now(UTC):%Y-%m-%d}"
    tests: Sequence[Floats] | NDArray[np.float64] = np.zeros((len(numbers_QN), 2 * streams))
    thresholds_A: Floats = np.full(2 * streams, np.inf)
    if state.detector is not None:
        tests = state.detector.evidence(numbers_QN[:, :streams])
        thresholds_A = state.detector.thresholds_A
    for numbers_N, evidence_A in zip(numbers_QN, tests, strict=True):
        before = levels
        levels, alarms = levels.after(evidence_A, thresholds_A)
        database.execute(
            "INSERT INTO photos VALUES (?, ?, ?)",
            (levels.photos, day, numbers_N.astype(np.float32).tobytes()),
        )
        for test in alarms:
            number, since = levels.photos, int(before.since_A[test])
            database.execute(
                "INSERT INTO alarms VALUES (?, ?, ?, ?, 1, ?) ON CONFLICT (test) DO UPDATE SET "
                "last = excluded.last, count = count + 1",
                (int(test), since, number, number, day),
            )
    database.execute("DELETE FROM photos WHERE number <= ?", (levels.photos - KEPT,))
    database.execute(
        "UPDATE monitor SET photos = ?, levels = ?, since = ?, day = ?",
        (levels.photos, *_blobs(levels), day),
    )


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
    """Last of the means."""
    level: float
    """Level over threshold of the test for a rise or a fall, whichever is higher."""
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
