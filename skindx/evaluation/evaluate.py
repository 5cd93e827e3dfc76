"""Score a bundle through the served predictor: what is measured is what a user gets."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import FolderKind, atomic_folder, sha256_file, write_json
from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, require_extra
from skindx.core.measurement import MeasurementOrigin, hardware, versions
from skindx.data.layout import MANIFEST, TAXONOMY, stored_file
from skindx.data.loader.load import work_ahead
from skindx.data.manifest import Record, check_sample, read_manifest, split_of
from skindx.diagnosis.conclusion import LEAST_OOD_P_VALUE, Conclusion, ConclusionRules, conclude
from skindx.diagnosis.scope import without_reassurance
from skindx.evaluation.answers import (
    PREDICTIONS,
    Answers,
    Contamination,
    MadeFrom,
    Part,
    leave_out,
    mix_of_classes,
    write_predictions,
)
from skindx.evaluation.elsewhere import Internal, compare_elsewhere, read_internal
from skindx.evaluation.evaluation_report import write_report
from skindx.evaluation.figures import SEED
from skindx.evaluation.image_table import (
    SETTINGS,
    TABLE,
    Pictures,
    check_pictures,
    worst_mistakes,
    write_image_table,
)
from skindx.evaluation.input_effects import with_known_facts
from skindx.evaluation.score import Evaluation, External, join_taxonomies, measure
from skindx.models.bundle.installed import shown
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.ensemble import Prediction
from skindx.models.metadata_head import MetadataSpec
from skindx.taxonomy import Taxonomy


def served_conclusions(
    predictor: ConclusionRules, records: Sequence[Record], predictions: Sequence[Prediction]
) -> tuple[Conclusion, ...]:
    """Return the conclusion of each image as the page gives it, each image a case of its own.

    The skin type is stated where the manifest knows it. Whether a photo is refused, or is too
    unfamiliar to name a condition, is not asked here.
    """
    classes = predictor.taxonomy.classes

    def one(record: Record, prediction: Prediction) -> Conclusion:
        members_MPC = prediction.member_probabilities_MC[:, None]
        photo_PC = prediction.probabilities_C[None]
        drawn = conclude(predictor, photo_PC, members_MPC, skin_type=record.skin_type)
        return replace(drawn, next_step=without_reassurance(drawn.next_step, classes))

    return tuple(map(one, records, predictions))


METRICS = "metrics.json"
REPORT = "report.html"

EVALUATION = FolderKind(
    "an evaluation", METRICS, (PREDICTIONS, TABLE, SETTINGS, REPORT, "checklist.*")
)

_BATCH = 16
_LEAST_CONFIDENCE = 0.001
"""mAP is an area under precision against recall: it needs the doubtful boxes as well."""

Decode = Callable[[bytes], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all."""


class ServedPredictor(ConclusionRules, MadeFrom, Protocol):
    """The predictor that the page and the command line use."""

    @property
    def members(self) -> tuple[str, ...]: ...
    @property
    def calibration_mix(self) -> Mapping[str, int] | None: ...
    @property
    def adapted(self) -> bool: ...
    @property
    def metadata(self) -> MetadataSpec | None: ...
    @property
    def use(self) -> UseLimits | None: ...
    def predict(
        self, images: Sequence[NDArray[np.uint8]], *, confidence: float | None = None
    ) -> list[Prediction]: ...


def evaluate(
    bundle: Path,
    dataset: Path,
    out: Path,
    *,
    split: Part = "test",
    draws: int = 1000,
    progress: Progress | None = None,
    copies_progress: Progress | None = None,
    expect: str | None = None,
    miss_rate: float | None = None,
    external: bool = False,
    internal: Path | None = None,
    pictures: Pictures = "licensed",
) -> Evaluation:
    """Score `bundle` on a split of `dataset`; write metrics, predictions and a report to `out`.

    `external`: compare with the evaluation on the bundle's own dataset in the folder `internal`,
    by default the one beside the bundle. `miss_rate` is the level of the urgent risk that the next
    steps and the headline go by. Raises UserError for one that the bundle has no threshold for, a
    split without images, a dataset of which the bundle knows no class, an image that cannot be
    read, `all` of the dataset that the bundle was trained on, and an `out` that holds anything but
    an earlier evaluation.
    """
    from skindx.diagnosis.predictor import Predictor
    from skindx.imaging.sandboxed_images import decode_limited

    if draws < 1:
        raise UserError(
            f"draws is {draws}, but an interval needs at least 1 bootstrap draw; give 1000."
        )
    require_extra("train", "matplotlib", purpose="the report of an evaluation")
    check_pictures(pictures)
    EVALUATION.check(out)
    records = split_records(dataset, split)
    check_sample(dataset, records)
    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate)
    taxonomy, rule = predictor.taxonomy, predictor.urgent_risk
    compared = (
        read_internal(bundle, internal, predictor.metrics, taxonomy.classes, rule)
        if external
        else None
    )
    return evaluate_served(
        predictor,
        records,
        partial(decode_limited, decoding=predictor.decoding),
        out,
        bundle=shown(bundle),
        digest=predictor.bundle.digest,
        dataset=dataset,
        split=split,
        draws=draws,
        progress=progress,
        copies_progress=copies_progress,
        internal=compared,
        pictures=pictures,
    )


def evaluate_served(
    predictor: ServedPredictor,
    records: Sequence[Record],
    decode: Decode,
    out: Path,
    *,
    bundle: str,
    dataset: Path,
    digest: str = "",
    split: Part = "test",
    draws: int = 1000,
    progress: Progress | None = None,
    copies_progress: Progress | None = None,
    internal: Internal | None = None,
    pictures: Pictures = "licensed",
) -> Evaluation:
    """Score a loaded predictor, of a bundle with this digest; write `out`. Raises UserError."""
    answered = answer_images(
        predictor,
        records,
        decode,
        bundle=bundle,
        dataset=dataset,
        split=split,
        external=internal is not None,
        progress=progress,
        copies_progress=copies_progress,
    )
    records, answers = answered.records, answered.answers
    evaluation = answered.measured(draws=draws)
    elsewhere = compare_elsewhere(internal, answers, draws=draws) if internal else None
    evaluation = replace(evaluation, elsewhere=elsewhere)
    origin = measured_now(predictor, bundle, digest, dataset, split)
    mistakes = worst_mistakes(records, answers, dataset, answered.read, pictures)
    with atomic_folder(out, EVALUATION) as folder:
        write_json(folder / METRICS, {"origin": origin.to_dict(), **evaluation.to_dict()})
        write_predictions(folder / PREDICTIONS, records, answers)
        write_image_table(folder, records, answered.predictions, answers)
        write_report(folder / REPORT, evaluation, origin, mistakes)
    return evaluation


def measured_now(
    predictor: ServedPredictor, bundle: str, digest: str, dataset: Path, split: str
) -> MeasurementOrigin:
    """Return what is measured, on which images, and on which machine, at this moment."""
    return MeasurementOrigin(
        bundle=bundle,
        dataset=str(dataset),
        manifest_sha256=sha256_file(dataset / MANIFEST),
        split=split,
        seed=SEED,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=hardware(),
        versions=versions(),
        taxonomy_review=predictor.taxonomy.review_note,
        bundle_digest=digest,
        use=predictor.use.text if predictor.use else "",
    )


@dataclass(frozen=True)
class AnsweredImages:
    """Some labelled images with what the product answers, before anything is measured."""

    records: list[Record]
    predictions: list[Prediction]
    answers: Answers
    external: External | None
    contamination: Contamination
    read: Callable[[Record], NDArray[np.uint8]]

    def measured(self, *, draws: int) -> Evaluation:
        """Return the figures of these images."""
        evaluation = measure(
            self.records,
            self.predictions,
            self.answers,
            draws=draws,
            external=self.external,
            seen=self.contamination.same_bytes,
        )
        return replace(evaluation, contamination=self.contamination)


def answer_images(
    predictor: ServedPredictor,
    records: Sequence[Record],
    decode: Decode,
    *,
    bundle: str,
    dataset: Path,
    split: Part,
    external: bool = False,
    progress: Progress | None = None,
    copies_progress: Progress | None = None,
) -> AnsweredImages:
    """Answer the images of a split of `dataset` as the page does. Raises UserError."""
    manifest = sha256_file(dataset / MANIFEST)
    if (split == "all" or external) and predictor.trained_on == manifest:
        raise UserError(
            f"{bundle} was trained on {dataset}, so its results on all images would mean nothing; "
            "evaluate on the test split (--split test), or on another dataset."
        )
    records, contamination = leave_out(
        predictor,
        dataset,
        records,
        split,
        manifest=manifest,
        bundle=bundle,
        progress=copies_progress,
    )
    path = dataset / TAXONOMY
    theirs = Taxonomy.load(path) if path.exists() else None
    records, joined = join_taxonomies(records, theirs, predictor.taxonomy, bundle)

    def read(record: Record) -> NDArray[np.uint8]:
        return _read(stored_file(dataset, record.path), decode)

    predictions = _predict(predictor, records, read, progress)
    predictions = with_known_facts(predictor, records, predictions)
    classes = predictor.taxonomy.classes
    answers = Answers.join(records, predictions, classes, predictor.members)
    if predictor.conformal:
        answers = answers.with_sets(predictor.conformal)
    concluded = served_conclusions(predictor, records, predictions)
    unsure_N = np.array([bool(conclusion.abstained) for conclusion in concluded])
    if answers.ood_N is not None:
        unsure_N |= answers.ood_N <= LEAST_OOD_P_VALUE
    answers = replace(
        answers,
        urgent_risk=predictor.urgent_risk,
        soon_risk=predictor.soon_risk,
        miss_rate=predictor.miss_rate,
        steps=tuple(conclusion.next_step.urgency for conclusion in concluded),
        abstained_N=unsure_N,
        mix_C=mix_of_classes(predictor.calibration_mix, classes),
        calibration_images=None if predictor.adapted else predictor.calibration_mix,
    )
    return AnsweredImages(records, predictions, answers, joined, contamination, read)


def split_records(dataset: Path, split: Part) -> list[Record]:
    """Return the dataset's images of one split, or all. Raises UserError when there is none."""
    records = read_manifest(dataset)
    chosen = records if split == "all" else split_of(records, split)
    if not chosen:
        counts = Counter(record.split for record in records)
        held = ", ".join(f"{name} ({n})" for name, n in counts.items()) or "no images at all"
        raise UserError(
            f"{dataset} has no images in the split {split!r}; choose one of its splits: {held}."
        )
    return chosen


def _read(path: Path, decode: Decode) -> NDArray[np.uint8]:
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"the image {path} cannot be read ({error}); run `skindx build` again."
        ) from None


def _predict(
    predictor: ServedPredictor,
    records: Sequence[Record],
    read: Callable[[Record], NDArray[np.uint8]],
    progress: Progress | None,
) -> list[Prediction]:
    predictions: list[Prediction] = []
    threads = cpu_count()
    with closing(work_ahead(read, records, threads=threads, ahead=_BATCH)) as images:
        while batch := list(islice(images, _BATCH)):
            predictions += predictor.predict(batch, confidence=_LEAST_CONFIDENCE)
            if progress:
                progress(len(predictions), len(records))
    return predictions
