"""How soon the monitor of a server notices a shift, and how rarely it raises a false alarm.

The numbers of a dataset's images are computed once, as they are and under each painted shift of
the camera; streams of photos are drawn from them, one image a lesion, and the tests run over them.
The arms are compared on validation images; the test images are looked at with the one that serves.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.manifest import Record, Split, read_image, read_manifest, split_of
from skindx.evaluation.answers import leave_out_seen
from skindx.metrics import proportion_interval
from skindx.models.bundle.bundle import open_bundle
from skindx.monitor.drift_detector import (
    ALLOWANCE,
    RUN_LENGTH,
    URGENT,
    DriftDetector,
    Floats,
    Stream,
)
from skindx.monitor.photo_numbers import PhotoNumbers
from skindx_bench.harness.result import Figure, Result
from skindx_bench.serve.drift_arms import Alarms, Arm, CusumArm, MartingaleArm, first_alarms

SMALLEST = ("runs=40", "draws=4", "photos=400", "simulated=60", "length=300")

# N = images, K = numbers of an image, A = tests, R = runs, T = photos of a run

Pixels = NDArray[np.uint8]


class Config(Settings):
    """Which bundle, on which images; without a bundle the numbers are invented, as a trial."""

    bundle: Path | None = None
    dataset: Path | None = None
    clinical: Path | None = None
    """A dataset of the other modality; without it that shift is left out."""
    table: Path | None = None
    """File (.npz) of the images' numbers: read where it exists, else written."""
    images: int = Field(1_500, ge=20)
    """Test images in control, at most; of the validation split a half."""
    shifted: int = Field(300, ge=20)
    """Test images of each painted shift, and of clinical ones; of the validation split a half."""
    runs: int = Field(400, ge=20)
    draws: int = Field(40, ge=4)
    """Times that the lesions are drawn again for the intervals, each with `runs` / 16 runs."""
    photos: int = Field(20_000, ge=100)
    """Photos of a run in control."""
    simulated: int = Field(400, ge=20)
    """Runs by which the thresholds are chosen."""
    length: int = Field(RUN_LENGTH, ge=100)
    """Run length that is asked for."""
    seed: int = 0


def colour_cast(photo: Pixels) -> Pixels:
    """Return the photo as a white balance that is off by a tenth shows it."""
    return _clipped(photo * np.array([1.1, 1.0, 0.9]))


def blur(photo: Pixels) -> Pixels:
    """Return the photo slightly out of focus: sigma 0.6 % of its shorter side."""
    import cv2

    return np.asarray(cv2.GaussianBlur(photo, (0, 0), 0.006 * min(photo.shape[:2])))


def gamma(photo: Pixels) -> Pixels:
    """Return the photo with another tone curve, exponent 0.8."""
    return _clipped(255 * (photo / 255) ** 0.8)


def device(photo: Pixels) -> Pixels:
    """Return the photo as another device shows it: less contrast, bluer, two thirds the pixels."""
    import cv2

    height, width = photo.shape[:2]
    small = cv2.resize(photo, (2 * width // 3, 2 * height // 3), interpolation=cv2.INTER_AREA)
    back = np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC))
    packed = cv2.imencode(".jpg", _clipped(0.92 * back * [0.96, 1, 1.06] + 10), [1, 70])[1]
    return np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR))


def _clipped(values: NDArray[np.floating]) -> Pixels:
    return np.asarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))


CAMERA: dict[str, Callable[[Pixels], Pixels]] = {
    "colour_cast": colour_cast,
    "blur": blur,
    "gamma": gamma,
    "device": device,
}
PREVALENCE = {"urgent_doubled": 2.0, "urgent_third": 1 / 3}
CLINICAL = {"clinical": 1.0, "quarter_clinical": 0.25}
"""Shift -> share of the photos that are of the other modality."""


@dataclass(frozen=True)
class NumbersTable:
    """Numbers N x K of each kind of images, as they are under "reference", "test" and "val"."""

    streams: tuple[Stream, ...]
    numbers: Mapping[str, NDArray[np.float32]]
    urgent: Mapping[Any, NDArray[np.bool_]]
    """By the label, of "test" and "val"."""

    @property
    def urgent_stream(self) -> int:
        """The stream of urgent risks, or -1."""
        keys = [stream.key for stream in self.streams]
        return keys.index(URGENT.key) if URGENT.key in keys else -1


def one_a_group(records: Sequence[Record]) -> list[Record]:
    """Return one image of each group, by its hash."""
    first: dict[str, Record] = {}
    for record in sorted(records, key=lambda record: record.sha256):
        first.setdefault(record.group, record)
    return list(first.values())


def measure(settings: Config, bundle: Path, dataset: Path) -> NumbersTable:
    """Compute the table, or read it. Raises UserError for a bundle without a reference."""
    opened = open_bundle(bundle)
    numbers = PhotoNumbers(opened, opened.ood())
    reference, why = numbers.reference()
    if reference is None:
        raise UserError(f"{bundle} has no reference for drift: {why}; pack it again.")
    records = read_manifest(dataset)
    chosen: dict[Split, list[Record]] = {
        "test": leave_out_seen(one_a_group(split_of(records, "test")), opened.seen(), "test", "")[
            : settings.images
        ],
        "val": one_a_group(split_of(records, "val"))[: settings.images // 2],
    }
    urgent = {c.key for c in opened.taxonomy.classes if c.urgency == "urgent"}
    labels = {
        split: np.array([record.label in urgent for record in part])
        for split, part in chosen.items()
    }
    if settings.table and settings.table.exists():
        with np.load(settings.table) as stored:
            return NumbersTable(numbers.streams, dict(stored), labels)
    ensemble = opened.ensemble()

    def numbers_of(
        folder: Path, part: Sequence[Record], change: Callable[[Pixels], Pixels] | None = None
    ) -> NDArray[np.float32]:
        rows = []
        for first in range(0, len(part), 32):
            photos = [read_image(folder, record) for record in part[first : first + 32]]
            photos = [change(photo) for photo in photos] if change else photos
            output = ensemble.predict_with_features(photos)
            rows.append(numbers.of_photos(ensemble, photos, output, range(len(photos))))
        return np.concatenate(rows)

    table: dict[str, Any] = {"reference": reference}
    for split, part in chosen.items():
        table[split] = numbers_of(dataset, part)
        some = part[: settings.shifted if split == "test" else settings.shifted // 2]
        for name, change in CAMERA.items():
            table[f"{split} {name}"] = numbers_of(dataset, some, change)
    if settings.clinical:
        other = one_a_group(read_manifest(settings.clinical))[: settings.shifted * 3 // 2]
        clinical = numbers_of(settings.clinical, other)
        table |= {"test clinical": clinical[: settings.shifted]}
        table |= {"val clinical": clinical[settings.shifted :]}
    if settings.table:
        with atomic_file(settings.table) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **table)
    return NumbersTable(numbers.streams, table, labels)


def invented(seed: int) -> NumbersTable:
    """Return a table of normal numbers, for a trial without a bundle."""
    random = np.random.default_rng(seed)
    stream = Stream("number", "camera", "more", "less")
    urgent = {name: random.random(300) < 0.2 for name in ("reference", "test", "val")}

    def rows(urgent_N: NDArray[np.bool_], moved: float) -> Floats:
        risk_N = 0.5 * urgent_N + 0.4 * random.random(len(urgent_N))
        return np.stack([random.standard_normal(len(urgent_N)) + moved, risk_N], axis=1)

    table = {name: rows(urgent_N, 0) for name, urgent_N in urgent.items()}
    for split in ("test", "val"):
        table |= {f"{split} {name}": rows(urgent[split][:100], 1) for name in CAMERA}
    plain = {name: numbers_NK.astype(np.float32) for name, numbers_NK in table.items()}
    return NumbersTable((stream, URGENT), plain, urgent)


BEFORE = 200
"""Photos in control before a shift."""
_AFTER = 3_000


@dataclass(frozen=True)
class Streams:
    """Draws streams of one split's images."""

    table: NumbersTable
    split: str

    def names(self) -> Iterator[str]:
        """Yield the shifts that the table has."""
        yield from CAMERA
        if self.table.urgent_stream >= 0:
            yield from PREVALENCE
        if f"{self.split} clinical" in self.table.numbers:
            yield from CLINICAL

    def wanted(self, name: str) -> str:
        """Return what an alarm of a shift should name."""
        return "prevalence" if name in PREVALENCE else "kind" if name in CLINICAL else "camera"

    def draw(
        self, name: str, shape: tuple[int, int], random: np.random.Generator, *, again: bool
    ) -> tuple[Floats, NDArray[np.intp]]:
        """Return rows, and which of them R x T photos are; "": in control throughout.

        With `again` the lesions are drawn once more first, as another dataset would have others.
        """
        own_NK = self.table.numbers[self.split]
        kind = "clinical" if name in CLINICAL else name
        other = self.table.numbers.get(f"{self.split} {kind}", own_NK)
        streams, length = len(self.table.streams), shape[1]
        own, others = (
            random.integers(len(part), size=len(part)) if again else np.arange(len(part))
            for part in (own_NK, other)
        )
        drawn_RT = random.choice(own, shape)
        if name in PREVALENCE:
            weights_N = np.where(self.table.urgent[self.split][own], PREVALENCE[name], 1.0)
            share = (self.table.urgent[self.split][own]).mean()
            rest = (1 - PREVALENCE[name] * share) / (1 - share)
            weights_N = np.where(weights_N == 1.0, rest, weights_N)
            late_RT = random.choice(own, shape, p=weights_N / weights_N.sum())
        elif name:
            late_RT = random.choice(others, shape) + len(own_NK)
            if name in CLINICAL:
                late_RT = np.where(random.random(shape) < CLINICAL[name], late_RT, drawn_RT)
        if name:
            drawn_RT = np.where(np.arange(length) < BEFORE, drawn_RT, late_RT)
        rows = np.concatenate([own_NK, other])[:, :streams].astype(np.float64)
        return rows, drawn_RT

    def alarms(self, arm: Arm, name: str, settings: Config, *, again: bool = False) -> Alarms:
        """Return the first alarms of runs; those of a shift drop runs with an earlier alarm."""
        seed = zlib.crc32(f"{settings.seed} {self.split} {name} {again}".encode())
        random = np.random.default_rng(seed)
        runs = max(settings.runs // 16, 4) if again else settings.runs
        length = BEFORE + min(_AFTER, settings.photos) if name else settings.photos
        draws = settings.draws if again else 1
        parts = [self.draw(name, (runs, length), random, again=again) for _ in range(draws)]
        rows = np.concatenate([drawn_RT for _, drawn_RT in parts]).astype(np.int32)
        found = first_alarms(arm, parts[0][0], rows)
        photo, test, since = found.photo_R, found.test_R, found.since_R
        if again:  # runs of one draw stay together
            return Alarms(*(part.reshape(draws, runs) for part in (photo, test, since)))
        kept = (photo == 0) | (photo > BEFORE) if name else np.ones(len(photo), dtype=bool)
        return Alarms(photo[kept], test[kept], since[kept])


def run_length(photo_R: NDArray[np.intp], photos: int) -> float:
    """Return the mean run length of runs that are cut off: all photos over all alarms."""
    seen = np.where(photo_R == 0, photos, photo_R).sum()
    return float(seen / max(int((photo_R > 0).sum()), 1))


def delay(photo_R: NDArray[np.intp]) -> float:
    """Return the median of the photos from a shift to its alarm; a run without one is the last."""
    late_R = photo_R[(photo_R == 0) | (photo_R > BEFORE)]
    after_R = np.where(late_R == 0, _AFTER, late_R - BEFORE)
    return float(np.median(after_R)) if len(after_R) else float(_AFTER)


def run(settings: Config) -> Result:
    """Compare the arms on validation images, then measure the one that serves on test images.

    Raises UserError for a bundle without its dataset, or without a reference.
    """
    if (settings.bundle is None) != (settings.dataset is None):
        raise UserError("a bundle needs its dataset, and a dataset a bundle; give both.")
    table = invented(settings.seed)
    if settings.bundle and settings.dataset:
        table = measure(settings, settings.bundle, settings.dataset)
    reference_NS = table.numbers["reference"][:, : len(table.streams)]
    shape = {"run_length": settings.length, "runs": settings.simulated, "seed": settings.seed}

    def cusum(allowance: float) -> CusumArm:
        fitted = DriftDetector.fit(reference_NS, table.urgent_stream, allowance=allowance, **shape)
        return CusumArm(fitted)

    arms: dict[str, Arm] = {}
    arms |= {f"cusum_{allowance}": cusum(allowance) for allowance in (0.15, 0.25, ALLOWANCE)}
    arms["martingale"] = MartingaleArm.fit(
        reference_NS, (settings.length, settings.simulated), settings.seed
    )
    models = {name: _compared(arm, Streams(table, "val"), settings) for name, arm in arms.items()}
    figures = _measured(arms[f"cusum_{ALLOWANCE}"], Streams(table, "test"), settings)
    return Result(
        "drift",
        figures,
        models=models,
        notes=_notes(settings, table),
        headings=("value", "95 % interval"),
    )


def _compared(arm: Arm, streams: Streams, settings: Config) -> dict[str, float]:
    found = {"run_length": run_length(streams.alarms(arm, "", settings).photo_R, settings.photos)}
    for name in streams.names():
        found[f"delay_{name}"] = delay(streams.alarms(arm, name, settings).photo_R)
    return {name: round(value, 1) for name, value in found.items()}


def _measured(arm: Arm, streams: Streams, settings: Config) -> dict[str, Figure]:
    def figure(
        alarms: Alarms, again: Alarms, value: Callable[[Alarms], float], unit: str
    ) -> Figure:
        parts = zip(again.photo_R, again.test_R, again.since_R, strict=True)
        low, high = np.quantile([value(Alarms(*part)) for part in parts], [0.025, 0.975])
        middle = value(alarms)
        if unit == "%":  # no share is known without an error, however many draws agree
            share = proportion_interval(middle / 100, settings.draws)
            low, high = min(low, 100 * share.low), max(high, 100 * share.high)
        return Figure(
            middle, unit, len(alarms.photo_R), (min(float(low), middle), max(float(high), middle))
        )

    count = len(streams.table.streams)

    def named(wanted: str, alarms: Alarms) -> float:
        late_R = alarms.photo_R > BEFORE
        shifts = [streams.table.streams[test % count].shift for test in alarms.test_R[late_R]]
        return 100 * float(np.mean([shift == wanted for shift in shifts])) if shifts else 0.0

    def dated(alarms: Alarms) -> float:
        late_R = alarms.photo_R > BEFORE
        errors = np.abs(alarms.since_R[late_R] - BEFORE - 1)
        return float(np.median(errors)) if late_R.any() else float(_AFTER)

    plain = streams.alarms(arm, "", settings), streams.alarms(arm, "", settings, again=True)
    figures = {
        "run_length": figure(
            *plain, lambda alarms: run_length(alarms.photo_R, settings.photos), "photos"
        )
    }
    for name in streams.names():
        both = streams.alarms(arm, name, settings), streams.alarms(arm, name, settings, again=True)
        wanted = streams.wanted(name)
        figures[f"delay_{name}"] = figure(*both, lambda alarms: delay(alarms.photo_R), "photos")
        figures[f"named_{name}"] = figure(*both, partial(named, wanted), "%")
        figures[f"dated_{name}"] = figure(*both, dated, "photos")
    return figures


def _notes(settings: Config, table: NumbersTable) -> tuple[str, ...]:
    sizes = ", ".join(f"{len(rows)} {name}" for name, rows in table.numbers.items())
    origin = "the bundle's numbers" if settings.bundle else "invented numbers"
    return (
        f"Of {origin}: images, one a lesion: {sizes}.",
        f"run_length: photos in control until the first alarm of any of {len(table.streams)} "
        f"streams, mean, runs cut off at {settings.photos}; delay_X: photos from the shift to the "
        f"alarm, median, after {BEFORE} photos in control; named_X: share of the first alarms that "
        "name it; dated_X: error of the estimated photo of the change, median. Intervals draw the "
        "lesions again.",
        "The arms are compared on validation images, under `models`.",
    )
