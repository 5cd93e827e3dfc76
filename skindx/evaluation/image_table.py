"""predictions.csv: one row an image, with all that the figures of an evaluation are computed from.

With predictions.json (classes, levels, thresholds) it needs no other file, and any program can read
it. `skindx recompute` makes the figures again from these two and compares them with metrics.json.
A report shows the wrong answers, with small pictures where their licence allows it.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv, write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import MALFORMED
from skindx.data.box import Box
from skindx.data.manifest import Record
from skindx.data.publish.published_rows import withheld_of
from skindx.data.tables.cells import no_formula, without_mark
from skindx.data.tables.reader import named_rows
from skindx.evaluation.answers import Answers, Floats, answers_of, columns_of, settings_of, unusable
from skindx.evaluation.breakdown import called_positive
from skindx.evaluation.elsewhere import Internal, compare_elsewhere
from skindx.evaluation.score import measure
from skindx.imaging.resize import small_jpeg
from skindx.models.ensemble import OodResult, Prediction
from skindx.models.urgent_risk import urgent_risks

TABLE = "predictions.csv"
SETTINGS = "predictions.json"

_TEXTS = ("path", "split", "sha256", "group", "label", "source", "sex", "site", "confirmed_by")
_OF_RECORDS = dict.fromkeys((*_TEXTS, "answers"), str) | {"skin_type": int, "age": float}
"""The columns that a record fills, and what they hold; no address, creator or caption."""
_CORNERS = ("x1", "y1", "x2", "y2", "score")


def write_image_table(
    folder: Path, records: Sequence[Record], predictions: Sequence[Prediction], answers: Answers
) -> None:
    """Write predictions.csv and predictions.json.

    Beside the columns of predictions.parquet, with one a class for each member
    (`member_NAME_CLASS`), stand `whole_CLASS` (by the whole image alone, where a crop was used),
    `known_CLASS` (with age, sex and place, where an answer uses them), `other_modality` (refused as
    dermoscopic or clinical), and `boxes_drawn` and `boxes_detected` as JSON lists of x1, y1, x2,
    y2, score. An empty cell is not known, or not measured.
    """
    columns = table_columns(records, predictions, answers)
    write_csv(folder / TABLE, columns, zip(*columns.values(), strict=True))
    write_json(folder / SETTINGS, settings_of(answers))


def table_columns(
    records: Sequence[Record], predictions: Sequence[Prediction], answers: Answers
) -> dict[str, list[Any]]:
    """Return the columns of the table as plain values, one an image."""
    keys = [skin_class.key for skin_class in answers.classes]
    asked = any(record.answers for record in records)
    facts = [name for name in _OF_RECORDS if asked or name != "answers"]
    columns = {name: [no_formula(getattr(record, name)) for record in records] for name in facts}
    for name, values in columns_of(records, answers).items():
        if name.startswith("member_"):
            columns |= _by_class(name, keys, values)
        elif name not in facts:
            columns[name] = [" ".join(held) for held in values] if name == "set" else values
    for name in ("whole", "known"):
        others = [getattr(prediction, f"{name}_C") for prediction in predictions]
        if any(other_C is not None for other_C in others):
            rows = [[""] * len(keys) if other_C is None else other_C.tolist() for other_C in others]
            columns |= _by_class(name, keys, rows)
    if all(prediction.other_modality is not None for prediction in predictions):
        columns["other_modality"] = [prediction.other_modality for prediction in predictions]
    # A box that is detected where none was drawn enters no figure.
    columns["boxes_drawn"] = [_boxes(record.boxes) for record in records]
    columns["boxes_detected"] = [
        _boxes(prediction.boxes if record.boxes is not None or not prediction.boxes else ())
        for record, prediction in zip(records, predictions, strict=True)
    ]
    return columns


def _by_class(name: str, keys: Sequence[str], values: Sequence[Any]) -> dict[str, list[Any]]:
    return {f"{name}_{key}": [row[i] for row in values] for i, key in enumerate(keys)}


def _boxes(boxes: Sequence[Box] | None) -> str | None:
    if boxes is None:
        return None
    return json.dumps([[getattr(box, corner) for corner in _CORNERS] for box in boxes])


def read_image_table(evaluation: Path) -> tuple[list[Record], list[Prediction], Answers]:
    """Read predictions.csv and predictions.json. Raises UserError."""
    path = evaluation / TABLE
    if not path.is_file():
        raise UserError(
            f"{evaluation} has no {TABLE}, so it is not an evaluation or is from an older "
            "version; give another folder, or run `skindx evaluate` again."
        )
    try:
        settings = json.loads((evaluation / SETTINGS).read_text(encoding="utf-8"))
        return read_rows([row for _, row in named_rows(path)], settings)
    except (OSError, *MALFORMED) as error:
        raise unusable(path, error) from None


def read_rows(
    rows: Sequence[Mapping[str, str]], settings: dict[str, Any]
) -> tuple[list[Record], list[Prediction], Answers]:
    """Return what rows of text hold. Raises KeyError, TypeError and ValueError for others."""
    if not rows:
        raise ValueError("the table has no rows")
    keys = [skin_class["key"] for skin_class in settings["classes"]]
    facts = {name: kind for name, kind in _OF_RECORDS.items() if name in rows[0]}

    def numbers(row: Mapping[str, str], name: str) -> list[float]:
        return [float(row[f"{name}_{key}"]) for key in keys]

    columns: dict[str, list[Any]] = {
        name: [kind(without_mark(row[name])) if row[name] or kind is str else None for row in rows]
        for name, kind in facts.items()
    }
    columns["predicted"] = [row["predicted"] for row in rows]
    columns |= _by_class("probability", keys, [numbers(row, "probability") for row in rows])
    for name in settings["members"]:
        columns[f"member_{name}"] = [numbers(row, f"member_{name}") for row in rows]
    if "set" in rows[0]:
        columns["set"] = [row["set"].split() for row in rows]
    if "next_step" in rows[0]:
        columns["next_step"] = [row["next_step"] for row in rows]
    if "abstained" in rows[0]:
        columns["abstained"] = [row["abstained"] == "True" for row in rows]
    if "ood_p_value" in rows[0]:
        columns["ood_p_value"] = [float(row["ood_p_value"]) for row in rows]
    answers = answers_of(columns, settings)
    records, predictions = [], []
    rate, p_values_N = answers.ood_rate, answers.ood_N
    for number, row in enumerate(rows):
        record: dict[str, Any] = {name: columns[name][number] for name in facts}
        drawn = _read_boxes(row["boxes_drawn"])
        records.append(Record(perceptual_hash="", width=0, height=0, boxes=drawn, **record))
        whole_C, known_C = (
            np.array(numbers(row, name)) if row.get(f"{name}_{keys[0]}") else None
            for name in ("whole", "known")
        )
        predictions.append(
            Prediction(
                answers.ensemble_NC[number],
                answers.members_NMC[number],
                _read_boxes(row["boxes_detected"]),
                whole_C,
                None if rate is None or p_values_N is None else OodResult(p_values_N[number], rate),
                known_C,
                other_modality=row["other_modality"] == "True" if "other_modality" in row else None,
            )
        )
    return records, predictions, answers


def _read_boxes(text: str) -> tuple[Box, ...] | None:
    if not text:
        return None
    return tuple(Box(x1, y1, x2, y2, score=score) for x1, y1, x2, y2, score in json.loads(text))


_ABOUT = ("origin", "draws", "level")
"""What metrics.json says of the measurement."""
NOT_IN_TABLE = ("external", "seen", "contamination", "elsewhere")
"""What it says of images that were not scored, and of another evaluation."""
_REPLACED = ("difference",)
"""Figures of older versions that are computed in another way now."""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How many printed figures the table gives again, and those that it does not."""

    figures: int
    differing: dict[str, tuple[float | None, float | None]]
    """Place in metrics.json, such as ensemble.top1.value -> as printed, as recomputed."""


def recompute(evaluation: Path, internal: Path | None = None) -> Recomputation:
    """Compute every figure of metrics.json again from predictions.csv.

    Changes of an external evaluation take the table of the `internal` one too. Raises UserError.
    """
    path = evaluation / "metrics.json"
    records, predictions, answers = read_image_table(evaluation)
    home = Internal(read_image_table(internal)[2], {}) if internal else None
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        draws = int(metrics["draws"])
        measured = measure(records, predictions, answers, draws=draws)
    except (OSError, *MALFORMED) as error:
        raise unusable(path, error) from None
    without = {*_ABOUT, *NOT_IN_TABLE, *_REPLACED}
    if home:
        measured = replace(measured, elsewhere=compare_elsewhere(home, answers, draws=draws))
        without.remove("elsewhere")
    return compared(metrics, measured.to_dict(), without)


def compared(
    metrics: Mapping[str, Any], again: Mapping[str, Any], without: Collection[str]
) -> Recomputation:
    """Compare printed figures with those that were made again, but for the keys `without`."""
    printed, computed = (
        dict(leaves({key: value for key, value in figures.items() if key not in without}))
        for figures in (metrics, again)
    )
    differing = {
        place: (value, computed.get(place))
        for place, value in printed.items()
        if place not in computed or not _equal(value, computed[place])
    }
    return Recomputation(len(printed), differing)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield the place and the value of each number in plain JSON values; None: not defined."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{place}.{key}" if place else str(key))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield place, value


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


# N = images

Pictures = Literal["licensed", "local", "none"]
"""Pictures that `skindx publish` would give away; also those that name no licence; none."""

SHOWN = 12
_SIDE = 176  # pixels; shown at half of it, so that it is sharp on a fine screen and on paper


def check_pictures(pictures: str) -> None:
    """Raise UserError for a word that is none of the choices."""
    if pictures not in get_args(Pictures):
        choices = ", ".join(get_args(Pictures))
        raise UserError(f"pictures={pictures!r} is not known; choose one of {choices}.")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One image named wrongly, with a small JPEG of it."""

    path: str
    truth: str
    predicted: str
    confidence: float
    risk: float
    """The summed probability of the urgent classes."""
    jpeg: bytes = b""
    """b"" where it is not shown, for the reason `withheld`."""
    withheld: str = ""
    credit: str = ""


@dataclass(frozen=True, slots=True)
class MistakeStrip:
    """Some mistakes under one heading, at most one a group."""

    title: str
    order: str
    count: int
    """Number of all such mistakes, shown or not."""
    mistakes: tuple[Mistake, ...]


def worst_mistakes(
    records: Sequence[Record],
    answers: Answers,
    dataset: Path,
    read: Callable[[Record], NDArray[np.uint8]],
    pictures: Pictures = "licensed",
) -> list[MistakeStrip]:
    """Return up to 12 urgent images that are not called urgent, and up to 12 confident mistakes.

    `read` returns an image's pixels_HWC; it is asked only for images that are shown. No choice
    shows an image whose licence forbids it, or that a person or an open flag keeps private.
    """
    risk_N = urgent_risks(answers.ensemble_NC, np.flatnonzero(answers.urgent_C).tolist())
    confidence_N = answers.ensemble_NC.max(axis=1)
    called_N = called_positive(answers, answers.urgent_C, answers.urgent_risk)
    wrong = (
        (
            "Urgent images that are not called urgent",
            "Least urgent risk first",
            answers.urgent_C[answers.truth_N] & ~called_N,
            risk_N,
        ),
        ("Most confident mistakes", "Most confident first", ~answers.right_N, -confidence_N),
    )
    strips = [
        (title, order, int(among_N.sum()), _first(answers, among_N, by_N))
        for title, order, among_N, by_N in wrong
    ]
    chosen = {place: records[place] for *_, places in strips for place in places}
    withheld = _withheld(dataset, list(chosen.values()), pictures)

    def one(place: int) -> Mistake:
        record, why = records[place], withheld.get(records[place].sha256, "")
        name = record.attribution.strip() or record.creator.strip()
        return Mistake(
            record.path,
            answers.classes[answers.truth_N[place]].name,
            answers.classes[answers.predicted_N[place]].name,
            float(confidence_N[place]),
            float(risk_N[place]),
            b"" if why else small_jpeg(np.asarray(read(record)), _SIDE),
            why,
            ", ".join(filter(None, (name, record.licence.strip()))),
        )

    return [
        MistakeStrip(title, order, count, tuple(map(one, places)))
        for title, order, count, places in strips
        if places
    ]


def _first(answers: Answers, among_N: NDArray[np.bool_], by_N: Floats) -> list[int]:
    """Return the places of the images with the least values, the first of each group."""
    places = np.flatnonzero(among_N)
    places = places[np.argsort(by_N[places], kind="stable")]
    _, first = np.unique(answers.groups_N[places], return_index=True)
    return [int(place) for place in places[np.sort(first)[:SHOWN]]]


def _withheld(dataset: Path, records: Sequence[Record], pictures: Pictures) -> dict[str, str]:
    if pictures == "none":
        return {record.sha256: "no pictures were asked for" for record in records}
    unnamed = {record.sha256 for record in records if not record.licence.strip()}
    return {
        sha256: reason.replace("-", " ")
        for sha256, (reason, _) in withheld_of(dataset, records).items()
        if not (pictures == "local" and reason == "licence-unknown" and sha256 in unnamed)
    }
