"""The evaluation of a release: one folder with a row an image, from which every figure follows.

`rows.parquet` has the images of val, calibration, test and of external datasets, with all that was
answered; `release.json` says of which bundle, and binds the rows by their SHA-256. The figures
(metrics.json of the test split, external-NAME.json) and the report are made from the rows as they
were written, so that `skindx recompute` needs neither bundle nor images. Choices between members
see the rows of val alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from skindx.core.atomic_files import (
    FolderKind,
    atomic_folder,
    read_parquet,
    sha256_file,
    write_json,
)
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules, require_extra
from skindx.core.measurement import MeasurementOrigin
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MALFORMED
from skindx.data.layout import MANIFEST
from skindx.data.manifest import Record, Split, check_sample
from skindx.evaluation.answers import Answers, Floats, settings_of, unusable
from skindx.evaluation.elsewhere import Internal, compare_elsewhere
from skindx.evaluation.evaluate import (
    METRICS,
    REPORT,
    AnsweredImages,
    Progress,
    answer_images,
    measured_now,
    split_records,
)
from skindx.evaluation.evaluation_report import write_report
from skindx.evaluation.image_table import (
    NOT_IN_TABLE,
    Recomputation,
    compared,
    read_rows,
    table_columns,
)
from skindx.evaluation.score import Evaluation, measure
from skindx.models.bundle.installed import shown
from skindx.models.class_calibration import ClassCalibration
from skindx.models.combination import log
from skindx.models.copy_recognition import CopyRecognition
from skindx.models.ensemble import Ensemble, Prediction
from skindx.models.fingerprints import Fingerprints, described

# M = members, N = images, C = classes

ROWS, RELEASE = "rows.parquet", "release.json"
OWN: tuple[Split, ...] = ("val", "calibration", "test")
"""The splits of the bundle's own dataset that have rows; no network learned from them."""
FOLDER = FolderKind("a release evaluation", RELEASE, (ROWS, METRICS, REPORT, "external-*.json"))
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")
_BUNDLE = b"skindx-bundle"

Part = tuple[list[Record], list[Prediction], Answers]
"""Images, predictions and answers of one split or external dataset."""


class _Release(Settings):
    """`release.json`: what the rows of a folder are of."""

    format: int = Field(1, ge=1, le=1)
    origin: dict[str, Any]
    """Bundle and its digest, dataset, machine, versions and date of the test split's answers."""
    command: str
    draws: int = Field(ge=1)
    settings: dict[str, Any]
    """Classes, members, thresholds and mix, as in predictions.json."""
    members: tuple[dict[str, Any], ...]
    """Each member's name, temperature and number of views."""
    parts: dict[str, dict[str, Any]]
    """The dataset, manifest, images and omissions of each split and external dataset."""
    rows_sha256: str = Field(pattern="^[0-9a-f]{64}$")


@dataclass(frozen=True)
class Release:
    """The rows of a release evaluation, checked against what release.json says of them."""

    origin: MeasurementOrigin
    draws: int
    parts: Mapping[str, Part]
    about: Mapping[str, Mapping[str, Any]]
    """What is said of each part: dataset, manifest, images, and what was left out."""

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return what each JSON file of figures holds, by its name, from the rows alone."""
        return {name: self._plain(part, one) for name, (part, one) in self._measured().items()}

    def test(self) -> Evaluation:
        """Return the figures of the test split."""
        return self._measured(external=False)[METRICS][1]

    def _measured(self, *, external: bool = True) -> dict[str, tuple[str, Evaluation]]:
        answers = self.parts["test"][2]
        validation = self.parts["val"][2] if "val" in self.parts else None
        home, made = Internal(answers, {}), {}
        for name, (records, predictions, own) in self.parts.items():
            if name == "test":
                one = measure(records, predictions, own, draws=self.draws, validation=validation)
                made[METRICS] = name, one
            elif external and name not in OWN:
                one = measure(records, predictions, own, draws=self.draws)
                changes = compare_elsewhere(home, own, draws=self.draws)
                made[f"external-{name}.json"] = name, replace(one, elsewhere=changes)
        return made

    def _plain(self, part: str, evaluation: Evaluation) -> dict[str, Any]:
        about = self.about[part]
        own = {"dataset": about["dataset"], "manifest_sha256": about["manifest_sha256"]}
        origin = {**self.origin.to_dict(), **own, "split": about["split"]}
        return {"origin": origin, **evaluation.to_dict(), **about["left_out"]}


def evaluate_release(
    bundle: Path,
    dataset: Path,
    out: Path,
    *,
    also: Mapping[str, Path] | None = None,
    draws: int = 1000,
    expect: str | None = None,
    miss_rate: float | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Evaluation:
    """Answer val, calibration, test and the external datasets `also`, by name; write `out`.

    Returns the figures of the test split. Raises UserError as `evaluate` does, for a name that is
    none, and for a dataset without a test split.
    """
    from skindx.diagnosis.predictor import Predictor
    from skindx.imaging.sandboxed_images import decode_limited

    require_extra("train", "matplotlib", purpose="the report of an evaluation")
    FOLDER.check(out)
    asked: dict[str, tuple[Path, Any]] = {name: (dataset, name) for name in OWN}
    for name, folder in (also or {}).items():
        if not _NAME.fullmatch(name) or name in (*OWN, "train"):
            raise UserError(
                f"--also {name!r} is not a valid name; use lower-case letters, digits, dots and "
                "dashes, but not the name of a split, for example --also clinic=other/data."
            )
        asked[name] = folder, "all"
    found = {
        name: (folder, split, split_records(folder, split))
        for name, (folder, split) in asked.items()
        if name == "test" or split == "all" or _has(folder, split)
    }
    for folder, _, records in found.values():
        check_sample(folder, records)
    copies: dict[str, int] = {}
    for name in set(found) - {*OWN}:
        folder, split, records = found[name]
        rest = _not_tested(folder, records, dataset, found["test"][2], name)
        found[name], copies[name] = (folder, split, rest), len(records) - len(rest)
    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate)
    decode = partial(decode_limited, decoding=predictor.decoding)
    answered: dict[str, AnsweredImages] = {}
    for name, (folder, split, records) in found.items():
        answered[name] = answer_images(
            predictor,
            records,
            decode,
            bundle=shown(bundle),
            dataset=folder,
            split=split,
            external=name not in OWN,
            progress=progress,
        )
    origin = measured_now(predictor, shown(bundle), predictor.bundle.digest, dataset, "test")
    members = predictor.bundle.spec.members
    with atomic_folder(out, FOLDER) as folder:
        _write_rows(folder / ROWS, answered, predictor.ensemble, origin.bundle_digest)
        release = _Release(
            origin=origin.to_dict(),
            command=command,
            draws=draws,
            settings=settings_of(answered["test"].answers),
            members=tuple(
                {"name": one.name, "temperature": one.temperature, "views": one.views}
                for one in members
            ),
            parts={
                name: _about(*found[name][:2], one) | {"copies_of_test": copies.get(name, 0)}
                for name, one in answered.items()
            },
            rows_sha256=sha256_file(folder / ROWS),
        )
        write_json(folder / RELEASE, release.model_dump(mode="json"))
        written = read_release(folder)
        for name, figures in written.figures().items():
            write_json(folder / name, figures)
        test = written.test()
        write_report(folder / REPORT, test, origin)
    return test


def _not_tested(
    folder: Path, records: Sequence[Record], dataset: Path, test: Sequence[Record], name: str
) -> list[Record]:
    """Return the images of an external dataset that are no copies of the bundle's test images.

    They are neither external nor learned from, so nothing else leaves them out. Without numba only
    the same bytes are found. Raises UserError where none is left.
    """
    known = {record.sha256 for record in test}
    if not missing_modules("numba"):
        recognition = CopyRecognition(Fingerprints.from_images(described(dataset, test)))
        known |= {copy.sha256 for copy in recognition.recognise(described(folder, records))}
    rest = [record for record in records if record.sha256 not in known]
    if not rest:
        raise UserError(
            f"every image of {name} ({folder}) is a copy of a test image of {dataset}, so no "
            f"image is external; give --also {name}= with a dataset that was collected elsewhere."
        )
    return rest


def _has(dataset: Path, split: Split) -> bool:
    return any(record.split == split for record in split_records(dataset, "all"))


def _about(dataset: Path, split: str, answered: AnsweredImages) -> dict[str, Any]:
    return {
        "dataset": dataset.resolve().name,
        "manifest_sha256": sha256_file(dataset / MANIFEST),
        "split": split,
        "images": len(answered.records),
        "left_out": {
            "seen": answered.contamination.same_bytes,
            "contamination": asdict(answered.contamination),
            "external": asdict(answered.external) if answered.external else None,
        },
    }


def _write_rows(
    path: Path, answered: Mapping[str, AnsweredImages], ensemble: Ensemble, digest: str
) -> None:
    """Write one row an image, with the columns of predictions.csv and those of `_raw`.

    `part` is the split, or the name of the external dataset.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for name, one in answered.items():
        columns = table_columns(one.records, one.predictions, one.answers)
        columns = {key: [_known(value) for value in values] for key, values in columns.items()}
        raw = _raw(ensemble, one.predictions, [info.key for info in one.answers.classes])
        arrays = {key: pa.array(values) for key, values in columns.items()}
        arrays |= {key: pa.array(values_N, pa.float32()) for key, values_N in raw.items()}
        crop = [prediction.whole_C is not None for prediction in one.predictions]
        part = pa.array([name] * len(crop))
        tables.append(pa.table({"part": part, **arrays, "crop": pa.array(crop)}))
    whole = pa.concat_tables(tables, promote_options="permissive")
    whole = whole.replace_schema_metadata({_BUNDLE: digest.encode()})
    pq.write_table(whole, path, compression="zstd")


def _known(value: Any) -> Any:
    return None if value == "" else value


def _raw(
    ensemble: Ensemble, predictions: Sequence[Prediction], keys: Sequence[str]
) -> dict[str, Floats]:
    """Return `logit_MEMBER_CLASS`, each member's log-probabilities, and `pooled_CLASS`.

    Both are as before any calibration, and are made by undoing it. Where a crop was mixed in,
    nothing can be undone, and they are NaN; a vote has no `pooled_CLASS`.
    """
    member_MNC = np.stack([one.member_probabilities_MC for one in predictions], axis=1)
    shown_NC = np.stack([one.probabilities_C for one in predictions])
    mixed_N = np.array([one.whole_C is not None for one in predictions])
    calibration, votes = ensemble.class_calibration, ensemble.combination.votes
    # Members of a vote are shown as they voted, without the classes' slope and biases.
    of_members = None if votes else calibration
    logits = {
        f"logit_{member.name}": member.temperature * _undone(of_members, log(member_MNC[m]))
        for m, member in enumerate(ensemble.members)
    }
    if not votes:
        shifts_C = np.array(ensemble.log_shifts or 0.0)
        logits["pooled"] = ensemble.temperature * _undone(calibration, log(shown_NC) - shifts_C)
    columns: dict[str, Floats] = {}
    for name, scores_NC in logits.items():
        log_NC = scores_NC - np.logaddexp.reduce(scores_NC, axis=1, keepdims=True)
        log_NC[mixed_N] = np.nan
        columns |= {f"{name}_{key}": log_NC[:, c] for c, key in enumerate(keys)}
    return columns


def _undone(calibration: ClassCalibration | None, log_NC: Floats) -> Floats:
    if calibration is None:
        return log_NC
    undone_NC: Floats = (log_NC - np.array(calibration.biases)) / calibration.slope
    return undone_NC


def is_release(folder: Path) -> bool:
    """Return whether a folder is the evaluation of a release."""
    return (folder / RELEASE).is_file()


def read_release(folder: Path) -> Release:
    """Read and check the rows of a release evaluation.

    Raises UserError for rows that were changed since, of another bundle, or of a class that the
    bundle lacks.
    """
    path = folder / ROWS
    if not is_release(folder) or not path.is_file():
        raise UserError(
            f"{folder} is not the evaluation of a release, because {RELEASE} or {ROWS} is "
            "missing; give a folder that `skindx evaluate --release` wrote."
        )
    try:
        raw = json.loads((folder / RELEASE).read_text(encoding="utf-8"))
        said = _Release.parse(raw, str(folder / RELEASE), expand=False)
        origin = MeasurementOrigin(**said.origin)
    except (OSError, *MALFORMED) as error:
        raise unusable(folder / RELEASE, error) from None
    if (found := sha256_file(path)) != said.rows_sha256:
        raise UserError(
            f"{path} was changed after the evaluation (its SHA-256 begins with {found[:16]}, not "
            f"{said.rows_sha256[:16]} as in {RELEASE}); restore it from a backup, or run `skindx "
            "evaluate --release` again."
        )
    try:
        table = read_parquet(path)
        digest = (table.schema.metadata or {}).get(_BUNDLE, b"").decode()
        if digest != origin.bundle_digest:
            raise UserError(
                f"{path} belongs to the bundle {digest[:16] or 'unknown'}, but {RELEASE} in the "
                f"same folder belongs to {origin.bundle_digest[:16]}; give a folder with the "
                "files of one evaluation."
            )
        rows = table.to_pylist()
        _check_classes(path, {row["label"] for row in rows}, said.settings)
        parts = {name: _part(rows, name, said.settings) for name in said.parts}
    except (OSError, *MALFORMED) as error:
        raise unusable(path, error) from None
    return Release(origin, said.draws, parts, said.parts)


def _check_classes(path: Path, labels: set[str], settings: Mapping[str, Any]) -> None:
    known = {one["key"] for one in settings["classes"]}
    if unknown := sorted(labels - known):
        raise UserError(
            f"{path} has images of the class {unknown[0]!r}, which the bundle does not have; "
            "run `skindx evaluate` with this bundle on the same images."
        )


def _part(rows: Sequence[Mapping[str, Any]], part: str, settings: dict[str, Any]) -> Part:
    own = [row for row in rows if row["part"] == part]
    given = [key for key in own[0] if any(row[key] is not None for row in own)] if own else []
    return read_rows(
        [{key: _text(row[key]) for key in {*given, *_ALWAYS}} for row in own], settings
    )


_ALWAYS = (
    "path", "sha256", "group", "source", "sex", "site", "confirmed_by", "skin_type", "age",
    "boxes_drawn", "boxes_detected",
)  # fmt: skip
"""Columns that a part has also where it has no value."""


def _text(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def release_figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the figures of a release by file, made from its rows alone. Raises UserError."""
    return read_release(folder).figures()


def recompute_release(folder: Path) -> Recomputation:
    """Make every figure of a release again from its rows, and compare them. Raises UserError."""
    again = release_figures(folder)
    without = {"origin", "draws", "level", *NOT_IN_TABLE} - {"elsewhere"}
    count = 0
    differing: dict[str, tuple[float | None, float | None]] = {}
    for name, figures in again.items():
        try:
            printed = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, *MALFORMED) as error:
            raise unusable(folder / name, error) from None
        plain = json.loads(json.dumps(figures, default=str))
        result = compared(printed, plain, without)
        count += result.figures
        differing |= {f"{name}: {place}": pair for place, pair in result.differing.items()}
    return Recomputation(count, differing)
