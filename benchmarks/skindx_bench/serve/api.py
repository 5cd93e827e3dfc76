"""What `Model.predict` costs beside the networks that it runs and the decoding of its photos."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from pydantic import Field

from skindx.api.model import Model
from skindx.core.machine import cpu_count
from skindx.core.settings_base import Settings
from skindx.data.loader.load import work_ahead
from skindx.diagnosis.photo_checks import open_photo
from skindx.diagnosis.predictor import Predictor
from skindx_bench.harness.result import Result, median, ratio
from skindx_bench.serve.server import photo_jpeg, random_bundle

BATCH = 32
SMALLEST = ("members=[test_resnet]", "side=64", "detector_side=64", "photos=4", "rounds=5")


class Config(Settings):
    """The bundle that predicts, and the photos."""

    bundle: Path | None = None
    """A bundle to measure; none: one of random weights, of the members below and a detector."""
    members: tuple[str, ...] = Field(("resnet50", "mobilenetv2_100"), min_length=1)
    side: int = Field(224, ge=32)
    detector_side: int = Field(320, ge=64, multiple_of=32)
    photos: int = Field(64, ge=1)
    width: int = Field(1024, ge=64)
    height: int = Field(768, ge=64)
    rounds: int = Field(7, ge=5)


def run(settings: Config) -> Result:
    """Time both in turns, in processor seconds of one thread for networks."""
    import cv2
    import torch

    # A thread that waits for another one spends processor time too.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    photos = [photo_jpeg(settings.width, settings.height, n) for n in range(settings.photos)]
    with tempfile.TemporaryDirectory() as folder:
        path = settings.bundle or _bundle(Path(folder), settings)
        predictor = Predictor.load(path)
    model = Model(predictor)

    def networks() -> None:
        needed = predictor.needs.side
        opening = work_ahead(
            lambda data: open_photo(data, needed=needed).pixels_HWC,
            photos,
            threads=cpu_count(),
            ahead=BATCH,
        )
        with closing(opening) as pixels:
            while batch := list(islice(pixels, BATCH)):
                predictor.predict_with_features(batch)

    def predicted() -> None:
        assert model.predict(photos, BATCH).num_rows == len(photos)

    seconds = _turns((networks, predicted), settings.rounds)
    per_photo = [[one / len(photos) for one in arm] for arm in seconds]
    return Result(
        "api",
        {"api_over_networks": ratio(per_photo[0], per_photo[1])},
        {
            "networks and decoding, CPU a photo": median(per_photo[0], "s"),
            "Model.predict, CPU a photo": median(per_photo[1], "s"),
        },
        notes=(
            "api_over_networks: processor time of `Model.predict` over that of decoding the same "
            f"photos and passing them through the bundle's networks, {BATCH} at a time; "
            "checks of photos, conclusions and the table are the difference.",
            f"{len(photos)} painted photos of {settings.width} x {settings.height} pixels; "
            + (
                f"{predictor.bundle.spec.name}: {', '.join(predictor.members)}."
                if settings.bundle
                else f"{' + '.join(settings.members)} at {settings.side} px and a yolo11n detector "
                f"at {settings.detector_side} px, random weights."
            ),
        ),
    )


def _bundle(folder: Path, settings: Config) -> Path:
    return random_bundle(
        folder / "bundle",
        settings.members,
        side=settings.side,
        detector_side=settings.detector_side,
        gallery=8,
    ).path


def _turns(arms: Sequence[Callable[[], None]], rounds: int) -> list[list[float]]:
    """Return the processor seconds of each arm's rounds, interleaved, after one to warm up."""
    seconds: list[list[float]] = [[] for _ in arms]
    for turn in range(-1, rounds):
        for arm, taken in zip(arms, seconds, strict=True):
            start = time.process_time()
            arm()
            if turn >= 0:
                taken.append(time.process_time() - start)
    return seconds
