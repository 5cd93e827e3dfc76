"""Score a bundle through the served predictor: what is measured is what a user gets."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from skindx.data.loader.ahead import work_ahead
from skindx.data.manifest import MANIFEST, Record, Split, read_manifest, split_of
from skindx.errors import UserError
from skindx.files import atomic_folder, sha256_file, write_json
from skindx.models.prediction import Prediction
from skindx.studies.mistakes import worst_mistakes
from skindx.studies.origin import Origin, hardware, versions
from skindx.studies.report import write_report
from skindx.studies.results import ClassInfo, Evaluation
from skindx.studies.score import SEED, score

METRICS = "metrics.json"
PREDICTIONS = "predictions.parquet"
REPORT = "report.html"

_OUTPUTS = (METRICS, PREDICTIONS, REPORT)

_BATCH = 16
_LEAST_CONFIDENCE = 0.001
"""mAP is an area under precision against recall: it needs the doubtful boxes as well."""

Decode = Callable[[bytes], NDArray[np.uint8]]
Progress = Callable[[int, int], None]
"""Called with the number of pictures done and the number of all."""


class Classes(Protocol):
    """The taxonomy of a bundle, as far as an evaluation needs it."""

    @property
    def classes(self) -> Sequence[ClassInfo]: ...
    @property
    def review_note(self) -> str: ...


class Served(Protocol):
    """The predictor that the page and the command line use."""

    @property
    def taxonomy(self) -> Classes: ...
    @property
    def members(self) -> tuple[str, ...]: ...
    def predict(
        self, pictures: Sequence[NDArray[np.uint8]], *, confidence: float | None = None
    ) -> list[Prediction]: ...


def evaluate(
    bundle: Path,
    dataset: Path,
    out: Path,
    *,
    split: Split = "test",
    draws: int = 1000,
    progress: Progress | None = None,
) -> Evaluation:
    """Score `bundle` on a split of `dataset`; write metrics, predictions and a report to `out`.

    Raises UserError for a split without pictures, a class that the bundle does not know, a picture
    that cannot be read, and an `out` that holds anything but an earlier evaluation.
    """
    from skindx.data.decode import decode
    from skindx.diagnosis.predictor import Predictor

    if draws < 1:
        raise UserError(f"{draws} bootstrap draws give no interval; ask for 1000.")
    check_out(out)
    records = split_records(dataset, split)
    predictor: Served = Predictor.load(bundle)
    return evaluate_served(
        predictor,
        records,
        decode,
        out,
        bundle=str(bundle),
        dataset=dataset,
        draws=draws,
        progress=progress,
    )


def evaluate_served(
    predictor: Served,
    records: Sequence[Record],
    decode: Decode,
    out: Path,
    *,
    bundle: str,
    dataset: Path,
    draws: int = 1000,
    progress: Progress | None = None,
) -> Evaluation:
    """Score a loaded predictor on records of one split, and write `out`. Raises UserError."""
    classes = predictor.taxonomy.classes
    _check_labels(records, classes, bundle)

    def read(record: Record) -> NDArray[np.uint8]:
        return _read(dataset / record.path, decode)

    predictions = _predict(predictor, records, read, progress)
    evaluation = score(records, predictions, classes, predictor.members, draws=draws)
    origin = Origin(
        bundle=bundle,
        dataset=str(dataset),
        manifest_sha256=sha256_file(dataset / MANIFEST),
        split=records[0].split,
        seed=SEED,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=hardware(),
        versions=versions(),
        taxonomy_review=predictor.taxonomy.review_note,
    )
    mistakes = worst_mistakes(records, predictions, classes, read)
    with atomic_folder(out) as folder:
        write_json(folder / METRICS, {"origin": asdict(origin), **evaluation.to_dict()})
        _write_predictions(folder / PREDICTIONS, records, predictions, classes)
        write_report(folder / REPORT, evaluation, origin, mistakes)
    return evaluation


def check_out(out: Path) -> None:
    """Refuse to replace a folder that holds anything but an earlier evaluation."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give a folder for the evaluation.")
    others = sorted({each.name for each in out.iterdir()} - set(_OUTPUTS)) if out.exists() else []
    if others:
        raise UserError(
            f"{out} holds other things ({', '.join(others[:3])}), which an evaluation would "
            "replace; give a new folder."
        )


def split_records(dataset: Path, split: Split) -> list[Record]:
    """Return the dataset's pictures of one split. Raises UserError when there is none."""
    records = read_manifest(dataset)
    chosen = split_of(records, split)
    if not chosen:
        counts = Counter(record.split for record in records)
        held = ", ".join(f"{name} ({n})" for name, n in counts.items()) or "no pictures at all"
        raise UserError(f"{dataset} has no pictures in the split {split!r}; it has {held}.")
    return chosen


def _check_labels(records: Sequence[Record], classes: Sequence[ClassInfo], bundle: str) -> None:
    strange = sorted({record.label for record in records} - {each.key for each in classes})
    if strange:
        raise UserError(
            f"the dataset's classes {', '.join(strange[:5])} are none of the {len(classes)} that "
            f"{bundle} was trained on; evaluate it on a dataset built with the same taxonomy."
        )


def _read(path: Path, decode: Decode) -> NDArray[np.uint8]:
    try:
        return decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run `skindx build` again.") from None


def _predict(
    predictor: Served,
    records: Sequence[Record],
    read: Callable[[Record], NDArray[np.uint8]],
    progress: Progress | None,
) -> list[Prediction]:
    predictions: list[Prediction] = []
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with closing(work_ahead(read, records, threads=threads, ahead=_BATCH)) as pictures:
        while batch := list(islice(pictures, _BATCH)):
            predictions += predictor.predict(batch, confidence=_LEAST_CONFIDENCE)
            if progress:
                progress(len(predictions), len(records))
    return predictions


def _write_predictions(
    path: Path,
    records: Sequence[Record],
    predictions: Sequence[Prediction],
    classes: Sequence[ClassInfo],
) -> None:
    """Write one row a picture: who it is, its label, and the ensemble's probabilities."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    probabilities_NC = np.stack([each.probabilities_C for each in predictions])
    keys = [each.key for each in classes]
    columns: dict[str, object] = {
        name: [getattr(record, name) for record in records]
        for name in ("path", "sha256", "group", "label")
    }
    columns["predicted"] = [keys[i] for i in probabilities_NC.argmax(axis=1)]
    columns |= {f"probability_{key}": probabilities_NC[:, i] for i, key in enumerate(keys)}
    pq.write_table(pa.table(columns), path)
