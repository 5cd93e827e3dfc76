"""Scans of composed photos beside SAHI and one pass over the whole photo."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import open_bundle
from skindx.models.detector import BatchDetector, Precision
from skindx.scan.tile_search import Grid, ScanSettings, fast_precision
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.scan.material import Material, read_material
from skindx_bench.scan.photos import (
    Boxes,
    Ours,
    Sahi,
    Truth,
    load_run,
    lost_tasks,
    sahi,
    whole_image,
    write_mosaic,
    write_photos,
    write_wide,
)
from skindx_bench.scan.scoring import (
    Photo,
    UrgencyRanking,
    average_precision,
    can_rank,
    recall_at,
    share,
    shares,
)

SMALLEST = (
    "photos=2",
    "width=400",
    "height=300",
    "lesions=4",
    "tile=64",
    "rounds=2",
    "processes=false",
)

_PRECISION = 0.94
"""At which the recall is read off the curve, whatever the threshold."""


class Config(Settings):
    """Composites, methods and measurements."""

    bundle: Path | None = None
    """A bundle with a detector, for example one trained on `skindx_bench.scan.training_set`."""
    boxes: Path | None = None
    """A YOLO export, whose test side gives lesions and skin; none: all of it is painted."""
    peers: Path | None = None
    """A folder with the environment that `python -m skindx_bench.harness.environments` made."""
    photos: int = Field(12, ge=1)
    width: int = Field(4000, ge=256)
    height: int = Field(3000, ge=256)
    lesions: int = Field(60, ge=1)
    """On each photo, about; where there is no room, fewer."""
    tile: int | None = Field(640, ge=64, multiple_of=32)
    overlap: float = Field(0.25, ge=0, le=0.75)
    precision: Precision | None = None
    """Of our convolutions; none: bf16 where the processor has it. SAHI's are in fp32."""
    floor: float = Field(0.05, ge=0, lt=1)
    """Least score of boxes that average precision counts, ours and SAHI's."""
    confidence: float | None = Field(None, ge=0, lt=1)
    """Least score of boxes that recall and precision count; none: the bundle's own."""
    rounds: int = Field(3, ge=2)
    """Timed searches of one photo by each."""
    threads: int = Field(1, ge=1)
    processes: bool = True
    """Also scan with worker processes: scaling, memory, kills."""
    mosaic: int = Field(3, ge=1)
    """Times across and down that a photo is repeated for the scaling."""
    megapixels: int = Field(1000, ge=12)
    """Of the large photo for the memory."""
    seed: int = 0


def run(settings: Config) -> Result:
    """Compose, search by each, score and time. Raises UserError without a detector."""
    if settings.bundle is None:
        raise UserError(
            "bench scan needs a bundle with a detector: --set bundle=RUN/bundle, as "
            "`skindx train` with `detector:` writes it."
        )
    import torch

    torch.set_num_threads(settings.threads)
    bundle = open_bundle(settings.bundle)
    detector = bundle.detector()
    if detector is None:
        raise UserError(f"bundle {settings.bundle} has no detector; train one with `detector:`.")
    config = ScanSettings(tile=settings.tile, overlap=settings.overlap, confidence=settings.floor)
    confidence = settings.confidence or detector.spec.confidence
    tile = settings.tile or detector.spec.size
    precision = settings.precision or fast_precision("cpu")
    ours = Ours(BatchDetector(detector, precision=precision), config)
    material = read_material(settings.boxes, "test") if settings.boxes else Material()
    with tempfile.TemporaryDirectory(prefix="skindx-bench-") as name:
        truth = write_photos(
            Path(name),
            (settings.width, settings.height),
            settings.photos,
            settings.lesions,
            material=material,
            seed=settings.seed,
        )
        found = [ours(photo.path)[0] for photo in truth]
        photos = [Photo(t.boxes_K4, *boxes) for t, boxes in zip(truth, found, strict=True)]
        whole = [
            Photo(t.boxes_K4, *whole_image(detector, t.path, tile, settings.floor)) for t in truth
        ]
        figures = {
            **_quality(photos, confidence),
            **_seams(photos, settings, ours, confidence),
            "ap": _points(photos),
            "ap_minus_whole_image": _difference(photos, whole),
            **_ranking(settings.bundle, truth, found, confidence, Path(name)),
        }
        peer: AbstractContextManager[Sahi | None] = (
            sahi(settings.peers, bundle, config, settings.threads)
            if settings.peers
            else nullcontext()
        )
        with peer as other:
            if other is not None:
                sahis = [Photo(t.boxes_K4, *other(t.path)[0]) for t in truth]
                figures["sahi_ap"] = _points(sahis)
                figures["ap_minus_sahi"] = _difference(photos, sahis)
                ratios = [
                    ours(truth[0].path)[1] / other(truth[0].path)[1] for _ in range(settings.rounds)
                ]
                figures["time_over_sahi"] = median(ratios, "×")
        figures["seconds_a_photo"] = median(
            [ours(truth[0].path)[1] for _ in range(settings.rounds)], "s"
        )
        if settings.processes:
            figures |= _load(settings, truth[0], Path(name))
    return Result("scan", figures, notes=tuple(_notes(settings, truth)), headings=MEANS)


def _quality(photos: Sequence[Photo], confidence: float) -> dict[str, Figure]:
    figures = {}
    for name, (part, count) in shares(photos, confidence).items():
        if count:
            figures[name] = share(part, count)
    part, count = recall_at(photos, _PRECISION)
    if count:
        figures[f"recall_at_precision_{100 * _PRECISION:.0f}"] = share(part, count)
    return figures


def _ranking(
    bundle: Path, truth: Sequence[Truth], found: Sequence[Boxes], confidence: float, folder: Path
) -> dict[str, Figure]:
    predictor = Predictor.load(bundle)
    if not can_rank(predictor):
        return {}
    ranking = UrgencyRanking(predictor)
    for photo, boxes in zip(truth, found, strict=True):
        ranking.add(photo, boxes, confidence, folder)
    return {
        key: Figure(area, "", count, (interval.low, interval.high))
        for key, (area, count, interval) in ranking.areas().items()
    }


def _seams(
    photos: Sequence[Photo], settings: Config, ours: Ours, confidence: float
) -> dict[str, Figure]:
    tile = settings.tile or ours.detector.spec.size
    grid = Grid(0, settings.width, settings.height, tile, round(settings.overlap * tile))
    begins = np.array([grid.place(number) for number in range(len(grid.patches))], np.float64)
    lines = [np.unique([begins[:, axis], begins[:, axis] + tile]) for axis in (0, 1)]
    counts = [photo.on_seams(lines, confidence) for photo in photos]
    found, once = (sum(part) for part in zip(*counts, strict=True))
    if not found:
        return {}
    return {"seam_lesions_once": share(once, found)}


def _points(photos: Sequence[Photo]) -> Figure:
    return _spread([average_precision([photo]) for photo in photos], average_precision(photos))


def _difference(ours: Sequence[Photo], others: Sequence[Photo]) -> Figure:
    differences = [
        average_precision([a]) - average_precision([b]) for a, b in zip(ours, others, strict=True)
    ]
    return _spread(differences, average_precision(ours) - average_precision(others))


def _spread(of_photos: Sequence[float], value: float) -> Figure:
    """Return a figure over all photos; its spread is that of 95 % of single ones."""
    low, high = np.percentile(of_photos, [2.5, 97.5])
    return Figure(value, "points", len(of_photos), (float(low), float(high)))


def _load(settings: Config, photo: Truth, folder: Path) -> dict[str, Figure]:
    assert settings.bundle is not None
    config = ScanSettings(tile=settings.tile, overlap=settings.overlap)
    one = [load_run(photo.path, settings.bundle, config, 1) for _ in range(2)]
    mosaic = write_mosaic(photo.path, folder / "mosaic.jpg", settings.mosaic)
    alone, pair = [], []
    for _ in range(2):
        alone.append(load_run(mosaic, settings.bundle, config, 1))
        pair.append(load_run(mosaic, settings.bundle, config, 2))
    killed = load_run(photo.path, settings.bundle, config, 2, kills=2)
    wide = write_wide(photo.path, folder / "wide.jpg", settings.megapixels)
    large = [load_run(wide, settings.bundle, config, 1) for _ in range(2)]
    memory = [a.peak_bytes / b.peak_bytes for a, b in zip(large, one, strict=True)]
    speed = [b.tiles_a_second / a.tiles_a_second for a, b in zip(alone, pair, strict=True)]
    lost = lost_tasks(one[0], killed)
    return {
        "scaling_2_workers": median(speed, "times"),
        "memory_1gp_over_12mp": median(memory, "×"),
        "lost_tasks": Figure(float(lost), "tasks", killed.killed, (float(lost), float(lost))),
    }


def _notes(settings: Config, truth: Sequence[Truth]) -> Iterator[str]:
    count = sum(len(photo.boxes_K4) for photo in truth)
    where = "painted" if settings.boxes is None else "real and painted"
    yield (
        f"{len(truth)} composed photos of {settings.width} x {settings.height} pixels with "
        f"{count} lesions, {where}: a stress test of the pipeline, no evidence for patients; "
        f"seed {settings.seed}. Cut-outs whose box does not fit one lesion, and lesions that do "
        "not show on their skin, are left out."
    )
    yield (
        f"Tiles of {settings.tile} pixels that share {settings.overlap:g}; recall, precision and "
        f"AP at IoU 0.5; AP over boxes with scores from {settings.floor:g}. Boxes of less than "
        "10 pixels are left out, SAHI's too."
    )
    yield (
        f"recall_at_precision_{100 * _PRECISION:.0f}: the highest recall of any threshold that "
        "has this precision on these photos; recall and precision themselves are at the "
        "threshold that was chosen before."
    )
    yield (
        "rank_auroc: how often a malignant lesion comes before another of the same photo, as the "
        "scan ranks; by_risk_alone: without the ugly duckling. Missing where no class of the "
        "bundle is urgent or no lesion is malignant."
    )
    yield (
        "time_over_sahi: our seconds over SAHI's, from the file to the boxes, the same detector, "
        "tiles, overlap and threshold, in turns; below 1 is faster. Our convolutions are in "
        f"{settings.precision or fast_precision('cpu')}, SAHI's in fp32."
        if settings.peers
        else "SAHI was not asked: --set peers=FOLDER."
    )
