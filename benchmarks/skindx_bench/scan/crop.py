"""Detecting a lesion first and classifying the crop, beside the whole image, by lesion size.

Lesions of a dataset with masks are seen as they were taken, and small in wide frames of skin. The
same networks see the whole image, the crop around the detector's best box, the crop around the
drawn box, and two simpler ways: a crop of the centre, and the whole image at twice the resolution.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.progress import plain_lines
from skindx.core.settings_base import Settings
from skindx.data.box import Box, iou
from skindx.data.loader.source import Files
from skindx.data.manifest import Record
from skindx.evaluation.adapt import first_mix
from skindx.evaluation.answers import leave_out_seen
from skindx.evaluation.evaluate import split_records
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.combination import best_box, box_crop
from skindx.models.copy_recognition import CopyRecognition
from skindx.models.detector import letterbox
from skindx.models.ensemble import Ensemble
from skindx.models.fingerprints import Fingerprints, described
from skindx.models.ood.ood_check import OodCheck, p_values_of
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.scan.crop_figures import Row, figures_of
from skindx_bench.scan.wide_frames import Outlined, Skin, WideFrame, outlined, wide_frame

# H, W = image, C = classes

SMALLEST = ("images=8", "times=[3]", "bootstrap=20")

Pixels = NDArray[np.uint8]
Find = Callable[[Pixels], Box | None]
Arm = Literal["detector", "drawn", "centre", "fine"]
"""What is compared with the whole image, which is always asked."""

AS_TAKEN, BOXES = "taken", "boxes"
_STANDS_OUT = 8.0
"""Least difference of a lesion from its skin, in CIELAB, for the detector that learned nothing."""


class Config(Settings):
    """What is measured; the test split is read once, at the end."""

    bundle: Path | None = None
    dataset: Path = Path("runs/ham10000/data")
    masks: Path | None = None
    """A folder with the mask of each image of the dataset, NAME.png."""
    boxes: Path | None = None
    """Another dataset with boxes, of the classes benign and malignant; none: it is left out."""
    detector: Path | None = None
    """A bundle whose detector is asked; none: what differs most in colour from the frame's skin."""
    split: Literal["val", "test"] = "val"
    images: int = Field(400, ge=4)
    """At most so many, rare classes first: no class has more than another that is not used up."""
    times: tuple[int, ...] = Field((3, 6), min_length=1)
    """Widths of the frames, in lengths of the lesion."""
    arms: tuple[Arm, ...] = get_args(Arm)
    margin: float = Field(1.5, ge=1, le=4)
    """Side of a crop over the longer side of its box."""
    views: Literal[1, 2, 4] | None = None
    """Views of an image that each network sees; none: as the bundle does."""
    rows: Path | None = None
    """A file of answers, one line an image: what is in it is not asked again."""
    limit_s: float | None = Field(None, gt=0)
    """Seconds after which no further lesion is asked about; with `rows` the command goes on."""
    bootstrap: int = Field(1000, ge=20)
    seed: int = 0


def run(settings: Config) -> Result:
    """Ask each arm about each image. Raises UserError without a bundle, a dataset or masks."""
    if settings.bundle is None or settings.masks is None:
        raise UserError(
            "bench crop needs a bundle, its dataset and masks of its lesions: --set "
            "bundle=RUN/bundle --set dataset=DATA --set masks=FOLDER."
        )
    bundle = open_bundle(settings.bundle)
    arms = Arms.of(bundle, settings)
    costs = arms.costs()
    records = chosen(_of_bundle(bundle, settings), settings.images, settings.seed)
    lesions = list(outlined(settings.dataset, settings.masks, records))
    skin = Skin.of(lesions)
    whole = [lesion for lesion in lesions if lesion.whole]
    answers = Answers.of(settings, [bundle.digest, arms.detector])
    report = plain_lines(print)
    others, notes = _boxed(bundle, settings)
    tasks = [_frames(lesion, skin, settings) for lesion in whole] + others
    # In random order, so that what is asked before the time is up has all classes.
    order = np.random.default_rng(settings.seed).permutation(len(tasks)).tolist()
    rows: list[Row] = []
    begun, skipped = time.monotonic(), 0
    for done, place in enumerate(order):
        known = all((where, one.sha256) in answers.kept for where, one, _ in tasks[place])
        if not known and done and time.monotonic() - begun > (settings.limit_s or math.inf):
            skipped += 1
            continue
        for where, record, frame in tasks[place]:
            ask = partial(arms, where, record, frame)
            rows.append(answers.get(where, record, ask))
        report("ask", done + 1, len(tasks))
    stopped = f"{skipped} of {len(tasks)} images were not asked about: the time was up"
    figures = figures_of(rows, bundle.taxonomy, first_mix(bundle), settings.bootstrap)
    return Result(
        "crop",
        {**figures, **costs},
        notes=(*_notes(settings, bundle, arms.detector, lesions, len(skin.patches)), *notes),
        headings=MEANS,
        partial=stopped if skipped else "",
    )


Task = tuple[str, Record, Callable[[], WideFrame]]


def _frames(lesion: Outlined, skin: Skin, settings: Config) -> list[Task]:
    """Return a lesion as it was taken and in each width of frame, composed when it is asked."""
    taken = WideFrame(lesion.pixels_HW3, lesion.box, ())
    tasks: list[Task] = [(AS_TAKEN, lesion.record, lambda: taken)]
    for times in settings.times:
        seed = [settings.seed, times, int(lesion.record.sha256[:8], 16)]

        def compose(times: int = times, seed: list[int] = seed) -> WideFrame:
            return wide_frame(lesion, times, skin, np.random.default_rng(seed))

        tasks.append((f"times_{times}", lesion.record, compose))
    return tasks


def chosen(records: Sequence[Record], most: int, seed: int) -> list[Record]:
    """Return one image of each group, at most `most` in all, as even over classes as can be."""
    order = np.random.default_rng(seed).permutation(len(records)).tolist()
    first = {records[place].group: records[place] for place in reversed(order)}
    of_class: dict[str, list[Record]] = {}
    for record in first.values():
        of_class.setdefault(record.label, []).append(record)
    left, result = most, []
    for number, key in enumerate(sorted(of_class, key=lambda name: len(of_class[name]))):
        share = of_class[key][: left // (len(of_class) - number)]
        left -= len(share)
        result += share
    return result


def _of_bundle(bundle: Bundle, settings: Config) -> list[Record]:
    records = [r for r in split_records(settings.dataset, settings.split)
               if r.label in bundle.taxonomy.keys]  # fmt: skip
    if settings.split == "test":
        return leave_out_seen(records, bundle.seen(), "test", str(bundle.path))
    return records


def _boxed(bundle: Bundle, settings: Config) -> tuple[list[list[Task]], list[str]]:
    """Return an image of each group of the other dataset, without copies of the first one's."""
    if settings.boxes is None:
        return [], []
    everything = split_records(settings.boxes, "all")
    own = Fingerprints.from_images(
        described(settings.dataset, split_records(settings.dataset, "all"))
    )
    copies = {
        c.sha256 for c in CopyRecognition(own).recognise(described(settings.boxes, everything))
    }
    groups = {record.group for record in everything if record.sha256 in copies}
    with_box = [r for r in everything if r.group not in groups and len(r.boxes or ()) == 1]
    records = list({record.group: record for record in reversed(with_box)}.values())
    files = Files(settings.boxes, records)
    tasks: list[list[Task]] = []
    for number, record in enumerate(records):
        assert record.boxes
        box = record.boxes[0]

        def read(number: int = number, box: Box = box) -> WideFrame:
            return WideFrame(files.image(number), box, ())

        tasks.append([(BOXES, record, read)])
    labels = sorted(record.label for record in records)
    kinds = ", ".join(f"{label} {labels.count(label)}" for label in dict.fromkeys(labels))
    wide = [max(b.x2 - b.x1, b.y2 - b.y1) / r.width for r in records for b in r.boxes or ()]
    note = (
        f"boxes: {len(everything)} images of {len({r.group for r in everything})} sources; "
        f"{len(groups)} sources are left out as copies of images of the dataset; one image of each "
        f"source with a single box: {len(records)} ({kinds}), whose box has a median of "
        f"{100 * float(np.median(wide)):.0f} % of the width. Malignant: the sum of the classes "
        "that are urgent or soon"
    )
    return tasks, [note]


@dataclass(frozen=True)
class Arms:
    """The networks, and what each arm shows them."""

    check: OodCheck | None
    ensemble: Ensemble
    fine: Ensemble
    find: Find
    detector: str
    """What finds boxes: the digest of its bundle, or that it is the threshold of colour."""
    settings: Config
    detector_flops: float

    @classmethod
    def of(cls, bundle: Bundle, settings: Config) -> "Arms":
        """Raises UserError for a bundle without the detector that it is named for."""
        plain = bundle.ensemble()
        members = tuple(
            replace(member, views=settings.views or member.views) for member in plain.members
        )
        fine = tuple(
            replace(
                member,
                views=2 if member.views == 8 else 1,
                preprocess=member.preprocess.model_copy(
                    update={"size": 2 * member.preprocess.size}
                ),
            )
            for member in members
        )
        find, name, flops = by_colour, "threshold of colour", 0.0
        if settings.detector is not None:
            other = open_bundle(settings.detector)
            detector = other.detector()
            if detector is None:
                raise UserError(f"bundle {settings.detector} has no detector; name one that has.")
            fused, confidence = detector.fused(), detector.spec.confidence
            name = other.digest

            def find(image_HW3: Pixels) -> Box | None:
                return best_box(fused.detect([image_HW3])[0], confidence)

            blank_HW3 = np.zeros((detector.spec.size,) * 2 + (3,), np.uint8)
            flops = _flops(lambda: fused.detect([blank_HW3]))
        return cls(
            bundle.ood(),
            replace(plain, members=members),
            replace(plain, members=fine),
            find,
            name,
            settings,
            flops,
        )

    def __call__(self, where: str, record: Record, make: Callable[[], WideFrame]) -> Row:
        """Return the answers of all arms about one image."""
        frame = make()
        image, truth, margin = frame.pixels_HW3, frame.box, self.settings.margin
        assert truth is not None
        arms, found, check = self.settings.arms, self.find(image), self.check
        answers: dict[str, list[float]] = {}
        refused: dict[str, bool] = {}

        def ask(arm: str, seen_HW3: Pixels) -> None:
            if check is None:
                answers[arm] = self.ensemble.probabilities([seen_HW3])[0][0].tolist()
                return
            output = self.ensemble.predict_with_features([seen_HW3])
            (p_value,) = p_values_of(check, self.ensemble, [seen_HW3], output)
            answers[arm] = output.probabilities_NC[0].tolist()
            refused[arm] = check.is_out(float(p_value))

        ask("whole", image)
        if "detector" in arms and found:
            ask("detector", box_crop(image, found, margin))
        elif "detector" in arms:  # the answer is that of the whole image
            answers["detector"] = answers["whole"]
            refused |= {"detector": refused["whole"]} if check else {}
        if "drawn" in arms:
            ask("drawn", box_crop(image, truth, margin))
        if where not in (AS_TAKEN, BOXES):
            height, width = image.shape[:2]
            top, left = height // 4, width // 4
            if "centre" in arms:
                ask("centre", image[top : height - top, left : width - left])
            if "fine" in arms:
                answers["fine"] = self.fine.probabilities([image])[0][0].tolist()
        in_decoy = found is not None and any(
            decoy.x1 <= (found.x1 + found.x2) / 2 < decoy.x2
            and decoy.y1 <= (found.y1 + found.y2) / 2 < decoy.y2
            for decoy in frame.decoys
        )
        return Row(
            where=where,
            sha256=record.sha256,
            group=record.group,
            label=record.label,
            share=max(truth.x2 - truth.x1, truth.y2 - truth.y1) / image.shape[1],
            answers=answers,
            refused=refused,
            iou=float(iou([found], [truth])[0, 0]) if found else None,
            in_decoy=in_decoy,
            decoys=len(frame.decoys),
        )

    def costs(self) -> dict[str, Figure]:
        """Return the operations of two ways over those of the whole image.

        Raises UserError for networks that take images of one size alone.
        """
        blank_HW3 = np.zeros((150, 200, 3), np.uint8)
        plain = _flops(lambda: self.ensemble.probabilities([blank_HW3]))
        ratios = {"detector": (plain + self.detector_flops) / plain}
        if "fine" in self.settings.arms:
            try:
                ratios["fine"] = _flops(lambda: self.fine.probabilities([blank_HW3])) / plain
            except (AssertionError, RuntimeError, ValueError):  # as timm's transformers raise
                raise UserError(
                    f"a network of {self.settings.bundle} takes images of one size alone; leave "
                    "the higher resolution out: --set 'arms=[detector, drawn, centre]'."
                ) from None
        return {
            f"{arm}_cost_times_whole": Figure(x, "times", 1, (x, x)) for arm, x in ratios.items()
        }


def _flops(call: Callable[[], object]) -> float:
    """Return the floating-point operations of a call's networks."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return float(counter.get_total_flops())


def by_colour(image_HW3: Pixels) -> Box | None:
    """Return the box of the piece that differs most from the median colour, by Otsu's threshold.

    None where nothing differs by what a person sees at a glance.
    """
    side = 160
    square_SS3, scale, (left, top) = letterbox(image_HW3, side)
    inner_HW3 = square_SS3[top : side - top, left : side - left].astype(np.float32) / 255
    lab_HW3 = cv2.GaussianBlur(cv2.cvtColor(inner_HW3, cv2.COLOR_RGB2LAB), (0, 0), 1.5)
    away_HW = np.linalg.norm(lab_HW3 - np.median(lab_HW3, axis=(0, 1)), axis=2)
    levels_HW = np.clip(4 * away_HW, 0, 255).astype(np.uint8)
    limit, _ = cv2.threshold(levels_HW, 0, 255, cv2.THRESH_OTSU)
    seen_HW = (levels_HW > max(limit, 4 * _STANDS_OUT)).astype(np.uint8)
    count, labels_HW, stats, _ = cv2.connectedComponentsWithStats(seen_HW)
    if count < 2:
        return None
    weights = np.bincount(labels_HW.ravel(), away_HW.ravel(), count)[1:]
    x, y, width, height, _ = (stats[1 + int(weights.argmax())] / scale).tolist()
    return Box(x, y, x + width, y + height, "lesion", "colour", 1.0)


@dataclass(frozen=True)
class Answers:
    """Rows that are kept in a file, so that the same command goes on where it was stopped."""

    path: Path | None
    kept: Mapping[tuple[str, str], Row]

    @classmethod
    def of(cls, settings: Config, origin: Sequence[str]) -> "Answers":
        """Read them, or begin the file. Raises UserError for rows of other settings."""
        path = settings.rows
        if path is None:
            return cls(None, {})
        of_settings = settings.model_dump(include={"split", "seed", "margin", "views", "arms"})
        head = json.dumps([*origin, json.loads(json.dumps(of_settings, sort_keys=True))])
        if not path.exists():
            path.write_text(head + "\n", encoding="utf-8")
        first, *lines = path.read_text(encoding="utf-8").splitlines()
        if first != head:
            raise UserError(
                f"{path} has answers of other networks or settings; name another file in rows."
            )
        rows = [Row.parse(json.loads(line), str(path)) for line in lines if line.endswith("}")]
        return cls(path, {(row.where, row.sha256): row for row in rows})

    def get(self, where: str, record: Record, make: Callable[[], Row]) -> Row:
        """Return a row; a new one is kept at once."""
        if (row := self.kept.get((where, record.sha256))) is not None:
            return row
        row = make()
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(row.model_dump_json() + "\n")
        return row


def _notes(
    settings: Config,
    bundle: Bundle,
    detector: str,
    lesions: Sequence[Outlined],
    patches: int,
) -> list[str]:
    whole = [lesion for lesion in lesions if lesion.whole]
    counts = {key: sum(x.record.label == key for x in whole) for key in bundle.taxonomy.keys}
    shares = [x.longer / x.mask_HW.shape[1] for x in whole]
    by = "a threshold of colour" if settings.detector is None else f"trained, {detector[:16]}"
    return [
        f"bundle {bundle.digest[:16]}, split {settings.split}; {len(lesions)} images with a mask, "
        f"one a lesion, rare classes first; without {len(lesions) - len(whole)} whose lesion comes "
        f"near the edge {len(whole)}: {', '.join(f'{key} {n}' for key, n in counts.items())}",
        f"as taken the lesion's longer side has a median of {100 * float(np.median(shares)):.0f} % "
        f"of the width [{', '.join(f'{100 * x:.0f}' for x in np.quantile(shares, [0.05, 0.95]))}]; "
        f"in frames it keeps its size in pixels, skin is grown from {patches} patches, and each "
        "frame has a decoy of bare skin that was blended in as the lesion was",
        f"detector: {by}; a crop is a square of {settings.margin:g} times the box's longer side; "
        "without a box the whole image is asked",
        "centre: the middle half of the frame; fine: the whole frame at twice the resolution, with "
        "a quarter of the views; the networks never learned from wide frames or so fine ones",
        "the frames are composed: a detector that learned from such frames is at home in them, and "
        "what it finds on photos that people take is another question",
        "intervals at 95 % by bootstrap over groups, paired where two arms are compared; what two "
        "arms differ by in a class holds for all classes of a place together (Bonferroni); seed "
        f"{settings.seed}",
    ]
