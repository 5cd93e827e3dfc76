"""predictions.parquet: what an evaluation's figures can be made from again, without the bundle."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.models.urgent_risk import UrgentRisk
from skindx.taxonomy import SkinClass, Urgency

PREDICTIONS = "predictions.parquet"
_NEEDED = ("path", "sha256", "group", "label", "predicted", "skin_type", "source")
_KEY = b"skindx"


def write_predictions(path: Path, records: Sequence[Record], answers: Answers) -> None:
    """Write one row an image: its identity, its label and the prediction.

    `probability_CLASS` is the ensemble's, `member_NAME` a list in the order of the classes, `set`
    the keys in the conformal set, `urgent_risk` the summed probability of the urgent classes,
    `next_step` the urgency that was advised. Classes, members and the thresholds of the urgent
    risk are in the file's metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = [skin_class.key for skin_class in answers.classes]
    columns: dict[str, Any] = {
        "path": [record.path for record in records],
        "split": [record.split for record in records],
        "sha256": answers.sha256_N,
        "group": answers.groups_N,
        "label": [keys[i] for i in answers.truth_N],
        "source": list(answers.sources),
    }
    columns["skin_type"] = pa.array(answers.skin_types, pa.int8())
    columns["predicted"] = [keys[i] for i in answers.predicted_N]
    columns |= {f"probability_{key}": answers.ensemble_NC[:, i] for i, key in enumerate(keys)}
    for number, name in enumerate(answers.members):
        columns[f"member_{name}"] = list(answers.members_NMC[:, number])
    if answers.sets_NC is not None:
        columns["set"] = [
            [key for key, held in zip(keys, set_C, strict=True) if held]
            for set_C in answers.sets_NC
        ]
    if answers.urgent_risk is not None:
        columns["urgent_risk"] = answers.urgent_risk.risks(answers.ensemble_NC)
    if answers.steps is not None:
        columns["next_step"] = list(answers.steps)
    rule = answers.urgent_risk
    metadata = {
        "urgent_risk": rule.model_dump(mode="json") if rule else None,
        "miss_rate": answers.miss_rate,
        "classes": [skin_class.model_dump(mode="json") for skin_class in answers.classes],
        "members": list(answers.members),
        "level": answers.level,
        "urgent_level": answers.urgent_level,
        "fitted_types": answers.fitted_types,
    }
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(metadata).encode()})
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary)


def read_predictions(evaluation: Path) -> Answers:
    """Read an evaluation's folder. Raises UserError for anything else, and for an older one."""
    import pyarrow as pa

    path = evaluation / PREDICTIONS
    if not path.is_file():
        raise UserError(f"{evaluation} is no evaluation (it has no {PREDICTIONS}); "
                        "give a folder that `skindx evaluate` wrote.")  # fmt: skip
    try:
        table = read_parquet(path)
        metadata = json.loads((table.schema.metadata or {})[_KEY])
        classes = tuple(SkinClass.model_validate(skin_class) for skin_class in metadata["classes"])
        members = tuple(map(str, metadata["members"]))
        keys = [skin_class.key for skin_class in classes]
        rule = metadata.get("urgent_risk")
        number = {key: i for i, key in enumerate(keys)}
        columns = {name: table.column(name).to_pylist() for name in _NEEDED}
        answers = Answers(
            classes=classes,
            members=members,
            truth_N=np.array([number[label] for label in columns["label"]], dtype=np.intp),
            groups_N=np.array(columns["group"]),
            sha256_N=np.array(columns["sha256"]),
            ensemble_NC=np.column_stack([table.column(f"probability_{key}") for key in keys]),
            members_NMC=np.stack(
                [np.array(table.column(f"member_{name}").to_pylist()) for name in members], axis=1
            ),
            skin_types=tuple(columns["skin_type"]),
            sources=tuple(columns["source"]),
            sets_NC=_sets(table, keys),
            level=metadata["level"],
            urgent_level=metadata.get("urgent_level"),
            fitted_types=tuple(metadata.get("fitted_types", ())),
            urgent_risk=UrgentRisk.model_validate(rule) if rule else None,
            miss_rate=_rate(metadata.get("miss_rate")),
            steps=_steps(table),
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be used ({type(error).__name__}: {error}), as one of an older version "
            "or a damaged one; run `skindx evaluate` again."
        ) from None
    return answers


def _steps(table: Any) -> tuple[Urgency, ...] | None:
    if "next_step" not in table.column_names:
        return None
    return tuple(table.column("next_step").to_pylist())


def _sets(table: Any, keys: Sequence[str]) -> Any:
    if "set" not in table.column_names:
        return None
    return np.array([[key in held for key in keys] for held in table.column("set").to_pylist()])


def _rate(value: object) -> float | None:
    if value is None or isinstance(value, float):
        return value
    raise TypeError(f"miss_rate is {value!r}, which is no number")
