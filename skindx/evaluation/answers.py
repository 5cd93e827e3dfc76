"""A predictor's answers on labelled images: the arrays that every figure is computed from.

predictions.parquet holds them, so that the figures can be made again without the bundle.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.core.untrusted import MALFORMED
from skindx.data.manifest import Record, Split
from skindx.models.conformal import ALL, Conformal
from skindx.models.copy_recognition import CopyRecognition
from skindx.models.ensemble import Prediction
from skindx.models.fingerprints import Fingerprints, described
from skindx.models.urgent_risk import QUESTIONS, Question, UrgentRiskRule
from skindx.taxonomy import SkinClass, Urgency

Part = Split | Literal["all"]
"""What of a dataset is scored; all of it only where nothing of it was trained on."""

OWN = "the dataset is the one that the bundle was made from, whose groups keep copies together"
OLDER = "the bundle has no fingerprints of its images; pack it again to recognise them"
NO_NUMBA = "numba is not installed, which the comparison needs"


class MadeFrom(Protocol):
    """A predictor that knows the images that its bundle was made from."""

    @property
    def trained_on(self) -> str: ...
    @property
    def seen(self) -> Mapping[str, Split] | None: ...
    @property
    def fingerprints(self) -> Fingerprints | None: ...


@dataclass(frozen=True, slots=True)
class Contamination:
    """How many images were left out, and whether copies in other bytes were looked for."""

    same_bytes: int = 0
    near_copies: int = 0
    not_searched: str = OWN
    """Why such copies were not looked for; empty where they were."""


def leave_out(
    predictor: MadeFrom,
    dataset: Path,
    records: Sequence[Record],
    split: Part,
    *,
    manifest: str,
    bundle: str,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Record], Contamination]:
    """Return the records of `test` or `all` without images that made the bundle and their copies.

    Other splits are returned whole. `manifest` is the SHA-256 of the dataset's. Raises UserError
    when no record is left.
    """
    unseen = leave_out_seen(records, predictor.seen, split, bundle)
    exact = len(records) - len(unseen)
    prints, reason = predictor.fingerprints, ""
    if predictor.trained_on == manifest or split not in ("test", "all"):
        reason = OWN
    elif prints is None:
        reason = OLDER
    elif missing_modules("numba"):
        reason = NO_NUMBA
    if reason or prints is None:
        return unseen, Contamination(exact, not_searched=reason)
    images = described(dataset, unseen, progress)
    copies = {copy.sha256 for copy in CopyRecognition(prints).recognise(images)}
    rest = _without(unseen, copies, bundle)
    return rest, Contamination(exact, len(unseen) - len(rest), "")


def leave_out_seen(
    records: Sequence[Record], seen: Mapping[str, Split] | None, split: Part, bundle: str
) -> list[Record]:
    """Return the records of `test` or `all` without the images that made the bundle.

    Other splits are returned whole. Raises UserError when no record is left.
    """
    if not seen or split not in ("test", "all"):
        return list(records)
    known = {sha256 for sha256, of in seen.items() if of != "test"}
    return _without(records, known, bundle)


def _without(records: Sequence[Record], known: Collection[str], bundle: str) -> list[Record]:
    rest = [record for record in records if record.sha256 not in known]
    if not rest:
        raise UserError(
            f"all {len(records)} images are, or are copies of, images that {bundle} was made "
            "from, so their results would mean nothing; evaluate on the test split of its "
            "dataset (--split test), or on another dataset."
        )
    return rest


def contamination_lines(contamination: Contamination) -> list[str]:
    """Return the sentences about copies in other bytes; none for a bundle's own dataset."""
    if contamination.not_searched == OWN:
        return []
    if contamination.not_searched:
        return [f"Copies in other bytes were not looked for: {contamination.not_searched}."]
    near = contamination.near_copies
    return [f"{near} images are left out: copies of images that the bundle was made from."]


# N = images, C = classes, M = members

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Strings = NDArray[np.str_]


@dataclass(frozen=True)
class Answers:
    """One row an image, classes and members in the predictor's order."""

    classes: tuple[SkinClass, ...]
    members: tuple[str, ...]
    truth_N: Ints
    groups_N: Strings
    sha256_N: Strings
    ensemble_NC: Floats
    members_NMC: Floats
    skin_types: tuple[int | None, ...]
    sources: tuple[str, ...]
    facts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What the manifest says of person, place and label, by its names; {}: of an older version."""
    sets_NC: NDArray[np.bool_] | None = None
    """The classes in each image's conformal set; None for a bundle without any."""
    level: float | None = None
    """The share of images whose set should hold the true class."""
    urgent_level: float | None = None
    """Target share for urgent classes; None where they have no threshold of their own."""
    fitted_types: tuple[int, ...] = ()
    """Skin types that have thresholds of their own."""
    urgent_risk: UrgentRiskRule | None = None
    """The thresholds of the urgent risk; None for a bundle without any."""
    soon_risk: UrgentRiskRule | None = None
    """The thresholds of the risk of urgent and soon classes together."""
    miss_rate: float | None = None
    """The level of both risks that the next steps go by; None: their default."""
    steps: tuple[Urgency, ...] | None = None
    """The urgency of each image's next step, as it is served; None: of an older version."""
    abstained_N: NDArray[np.bool_] | None = None
    """Whether no condition is named with confidence, as it is served; None: of an older version."""
    ood_N: Floats | None = None
    """P-values of the out-of-distribution check; None: there is none, or of an older version."""
    ood_rate: float | None = None
    """P-value at or below which an image is refused."""
    mix_C: Floats | None = None
    """The share of each class that the probabilities hold for: that of the calibration images.

    None where the bundle does not say, as in those of older versions.
    """
    calibration_images: Mapping[str, int] | None = None
    """How many calibration images each class has, by its key; None: not known, or adapted since."""

    def with_sets(self, rule: Conformal) -> Self:
        return replace(
            self,
            sets_NC=rule.sets(self.ensemble_NC, self.skin_types),
            level=rule.level,
            urgent_level=rule.urgent_level,
            fitted_types=tuple(t for t in range(1, 7) if rule.group(t) != ALL),
        )

    @classmethod
    def join(
        cls,
        records: Sequence[Record],
        predictions: Sequence[Prediction],
        classes: Sequence[SkinClass],
        members: Sequence[str],
    ) -> Self:
        """Join predictions with the records they answer; every label must be a class's key."""
        number = {skin_class.key: i for i, skin_class in enumerate(classes)}
        return cls(
            classes=tuple(classes),
            members=tuple(members),
            truth_N=np.array([number[record.label] for record in records], dtype=np.intp),
            groups_N=np.array([record.group for record in records]),
            sha256_N=np.array([record.sha256 for record in records]),
            ensemble_NC=np.stack([prediction.probabilities_C for prediction in predictions]),
            members_NMC=np.stack(
                [prediction.member_probabilities_MC for prediction in predictions]
            ),
            skin_types=tuple(record.skin_type for record in records),
            sources=tuple(record.source for record in records),
            facts={
                "age": tuple(record.age for record in records),
                "sex": tuple(record.sex for record in records),
                "site": tuple(record.site for record in records),
                "confirmed_by": tuple(record.confirmed_by for record in records),
                **({"answers": asked} if any(asked := tuple(r.answers for r in records)) else {}),
            },
            **_checked(predictions),
        )

    def rule(self, question: Question) -> UrgentRiskRule | None:
        """Return the thresholds of a question; None for a bundle without any."""
        return {"urgent_risk": self.urgent_risk, "soon_risk": self.soon_risk}[question]

    def __len__(self) -> int:
        return len(self.truth_N)

    @property
    def predicted_N(self) -> Ints:  # noqa: N802
        """The likeliest class of each image."""
        index_N: Ints = self.ensemble_NC.argmax(axis=1)
        return index_N

    @property
    def right_N(self) -> NDArray[np.bool_]:  # noqa: N802
        """Whether the likeliest class is the true one."""
        right_N: NDArray[np.bool_] = self.predicted_N == self.truth_N
        return right_N

    @property
    def urgent_C(self) -> NDArray[np.bool_]:  # noqa: N802
        return np.array([skin_class.urgency == "urgent" for skin_class in self.classes])

    def some(self, index: NDArray[Any]) -> Self:
        """Return the rows of an index array or a mask, in its order."""
        rows = np.arange(len(self))[index]
        return replace(
            self,
            truth_N=self.truth_N[rows],
            groups_N=self.groups_N[rows],
            sha256_N=self.sha256_N[rows],
            ensemble_NC=self.ensemble_NC[rows],
            members_NMC=self.members_NMC[rows],
            skin_types=tuple(self.skin_types[row] for row in rows),
            sources=tuple(self.sources[row] for row in rows),
            facts={name: tuple(values[row] for row in rows) for name, values in self.facts.items()},
            sets_NC=None if self.sets_NC is None else self.sets_NC[rows],
            steps=None if self.steps is None else tuple(self.steps[row] for row in rows),
            abstained_N=None if self.abstained_N is None else self.abstained_N[rows],
            ood_N=None if self.ood_N is None else self.ood_N[rows],
        )


def _checked(predictions: Sequence[Prediction]) -> dict[str, Any]:
    checks = [prediction.ood for prediction in predictions if prediction.ood]
    if not checks or len(checks) < len(predictions):
        return {}
    return {"ood_N": np.array([check.p_value for check in checks]), "ood_rate": checks[0].rate}


PREDICTIONS = "predictions.parquet"
_NEEDED = ("path", "sha256", "group", "label", "predicted", "skin_type", "source")
FACTS = ("age", "sex", "site", "confirmed_by", "answers")
"""Optional columns: an evaluation of an older version has none of them."""
_KEY = b"skindx"


def write_predictions(path: Path, records: Sequence[Record], answers: Answers) -> None:
    """Write one row an image: its identity, its label and the prediction.

    `probability_CLASS` is the ensemble's, `member_NAME` a list in the order of the classes, `set`
    the keys in the conformal set, `urgent_risk` the summed probability of the urgent classes,
    `soon_risk` that of urgent and soon classes, `next_step` the urgency that was advised,
    `abstained` whether no condition was named with confidence, `ood_p_value` that of the
    out-of-distribution check. Classes, members and the thresholds of both risks are in the file's
    metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = columns_of(records, answers)
    columns["skin_type"] = pa.array(answers.skin_types, pa.int8())
    if "age" in columns:
        columns["age"] = pa.array(columns["age"], pa.float32())
    metadata = {_KEY: json.dumps(settings_of(answers)).encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary)


def columns_of(records: Sequence[Record], answers: Answers) -> dict[str, list[Any]]:
    """Return the columns of a table of predictions as plain values, one an image."""
    keys = [skin_class.key for skin_class in answers.classes]
    columns: dict[str, list[Any]] = {
        "path": [record.path for record in records],
        "split": [record.split for record in records],
        "sha256": answers.sha256_N.tolist(),
        "group": answers.groups_N.tolist(),
        "label": [keys[i] for i in answers.truth_N],
        "source": list(answers.sources),
        "skin_type": list(answers.skin_types),
        **{name: list(values) for name, values in answers.facts.items()},
        "predicted": [keys[i] for i in answers.predicted_N],
    }
    columns |= {
        f"probability_{key}": answers.ensemble_NC[:, i].tolist() for i, key in enumerate(keys)
    }
    for number, name in enumerate(answers.members):
        columns[f"member_{name}"] = answers.members_NMC[:, number].tolist()
    if answers.sets_NC is not None:
        columns["set"] = [
            [key for key, held in zip(keys, set_C, strict=True) if held]
            for set_C in answers.sets_NC
        ]
    for question in QUESTIONS:
        if rule := answers.rule(question):
            columns[question] = rule.risks(answers.ensemble_NC).tolist()
    if answers.steps is not None:
        columns["next_step"] = list(answers.steps)
    for name, values_N in (("abstained", answers.abstained_N), ("ood_p_value", answers.ood_N)):
        if values_N is not None:
            columns[name] = values_N.tolist()
    return columns


def settings_of(answers: Answers) -> dict[str, Any]:
    """Return what is not of one image: classes, members, levels and thresholds; for JSON."""
    rules = {question: answers.rule(question) for question in QUESTIONS}
    return {
        **{name: rule.model_dump(mode="json") if rule else None for name, rule in rules.items()},
        "miss_rate": answers.miss_rate,
        "classes": [skin_class.model_dump(mode="json") for skin_class in answers.classes],
        "members": list(answers.members),
        "level": answers.level,
        "ood_rate": answers.ood_rate,
        "calibration_images": answers.calibration_images and dict(answers.calibration_images),
        "mix": None if answers.mix_C is None else answers.mix_C.tolist(),
        "urgent_level": answers.urgent_level,
        "fitted_types": list(answers.fitted_types),
    }


def answers_of(columns: Mapping[str, Sequence[Any]], settings: dict[str, Any]) -> Answers:
    """Return the answers of such columns and settings. Raises KeyError, TypeError, ValueError."""
    classes = tuple(SkinClass.model_validate(skin_class) for skin_class in settings["classes"])
    members = tuple(map(str, settings["members"]))
    keys = [skin_class.key for skin_class in classes]
    rules = {
        question: UrgentRiskRule.model_validate(rule)
        for question in QUESTIONS
        if (rule := settings.get(question))
    }
    number = {key: i for i, key in enumerate(keys)}
    needed = {name: columns[name] for name in _NEEDED}
    sets = columns.get("set")
    return Answers(
        classes=classes,
        members=members,
        truth_N=np.array([number[label] for label in needed["label"]], dtype=np.intp),
        groups_N=np.array(needed["group"]),
        sha256_N=np.array(needed["sha256"]),
        ensemble_NC=np.column_stack([columns[f"probability_{key}"] for key in keys]),
        members_NMC=np.stack([np.array(columns[f"member_{name}"]) for name in members], axis=1),
        skin_types=tuple(needed["skin_type"]),
        sources=tuple(needed["source"]),
        facts={name: tuple(columns[name]) for name in FACTS if name in columns},
        sets_NC=np.array([[key in held for key in keys] for held in sets]) if sets else None,
        level=settings["level"],
        urgent_level=settings.get("urgent_level"),
        fitted_types=tuple(settings.get("fitted_types", ())),
        urgent_risk=rules.get("urgent_risk"),
        soon_risk=rules.get("soon_risk"),
        miss_rate=_rate(settings.get("miss_rate")),
        steps=tuple(columns["next_step"]) if "next_step" in columns else None,
        abstained_N=np.array(columns["abstained"]) if "abstained" in columns else None,
        ood_N=np.array(columns["ood_p_value"]) if "ood_p_value" in columns else None,
        ood_rate=_rate(settings.get("ood_rate")),
        calibration_images=_counts(settings.get("calibration_images")),
        mix_C=_mix(settings.get("mix"), len(classes)),
    )


def read_predictions(evaluation: Path) -> Answers:
    """Read an evaluation's folder. Raises UserError for anything else, and for an older one."""
    import pyarrow as pa

    path = evaluation / PREDICTIONS
    if not path.is_file():
        raise UserError(f"{evaluation} is not an evaluation, because it has no {PREDICTIONS}; "
                        "give a folder that `skindx evaluate` wrote.")  # fmt: skip
    try:
        table = read_parquet(path)
        settings = json.loads((table.schema.metadata or {})[_KEY])
        return answers_of(table.to_pydict(), settings)
    except (pa.ArrowException, OSError, *MALFORMED) as error:
        raise unusable(path, error) from None


def unusable(path: Path, error: Exception) -> UserError:
    """Return the refusal of a file of predictions that cannot be read."""
    return UserError(
        f"{path} is damaged or from an older version ({type(error).__name__}: {error}); run "
        "`skindx evaluate` again."
    )


def _mix(shares: object, classes: int) -> Floats | None:
    if shares is None:
        return None
    mix_C = np.array(shares, dtype=float)
    if mix_C.shape != (classes,) or not (mix_C >= 0).all() or not 0 < mix_C.sum() < np.inf:
        raise ValueError(f"mix is {shares!r}, but must have a share for each of {classes} classes")
    return mix_C


def _counts(counts: object) -> dict[str, int] | None:
    if counts is None:
        return None
    if isinstance(counts, dict) and all(type(count) is int for count in counts.values()):
        return counts
    raise TypeError(f"calibration_images is {counts!r}, but must have a count for each class")


def mix_of_classes(
    counts: Mapping[str, float] | None, classes: Sequence[SkinClass]
) -> Floats | None:
    """Return the shares of the classes that a predictor's `calibration_mix` counts."""
    if not counts:
        return None
    count_C = np.array([counts.get(one.key, 0) for one in classes], dtype=float)
    mix_C: Floats = count_C / count_C.sum()
    return mix_C


def _rate(value: object) -> float | None:
    if value is None or isinstance(value, float):
        return value
    raise TypeError(f"miss_rate is {value!r}, but must be a number")
