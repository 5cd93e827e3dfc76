"""Lesions in a file of plain arrays, as workers answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skindx.core.atomic_files import atomic_file
from skindx.data.box import Box
from skindx.scan.lesion import Lesion


def write_lesions(path: Path, lesions: Sequence[Lesion]) -> None:
    """Write at least one lesion, whole or not at all; the same again changes nothing."""
    arrays: dict[str, Any] = {
        "boxes": np.array([[b.x1, b.y1, b.x2, b.y2, b.score or 0.0] for b in _boxes(lesions)]),
        "labels": np.array([box.label for box in _boxes(lesions)]),
        "probabilities": np.stack([lesion.probabilities_C for lesion in lesions]),
        "risks": np.array(
            [np.nan if x.urgent_risk is None else x.urgent_risk for x in lesions], np.float64
        ),
        "urgent": np.array([-1 if x.urgent is None else int(x.urgent) for x in lesions]),
        "possible": np.array(["\n".join(lesion.possible) for lesion in lesions]),
        "ood": np.array(
            [np.nan if x.ood_p_value is None else x.ood_p_value for x in lesions], np.float64
        ),
        "embeddings": np.stack([lesion.embedding_D for lesion in lesions]),
        "colours": np.array([lesion.colour_lab for lesion in lesions]),
    }
    with atomic_file(path, mode=0o600) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_lesions(path: Path) -> list[Lesion]:
    """Return what `write_lesions` wrote."""
    with np.load(path, allow_pickle=False) as file:
        a = {name: file[name] for name in file.files}
    return [_lesion({name: array[n] for name, array in a.items()}) for n in range(len(a["boxes"]))]


def _lesion(row: dict[str, Any]) -> Lesion:
    x1, y1, x2, y2, score = (float(value) for value in row["boxes"])
    lightness, red, yellow = (float(value) for value in row["colours"])
    return Lesion(
        box=Box(x1, y1, x2, y2, str(row["labels"]), "detector", score),
        probabilities_C=row["probabilities"],
        urgent_risk=None if np.isnan(row["risks"]) else float(row["risks"]),
        urgent=None if row["urgent"] < 0 else bool(row["urgent"]),
        possible=tuple(str(row["possible"]).split("\n")) if row["possible"] else (),
        ood_p_value=None if np.isnan(row["ood"]) else float(row["ood"]),
        embedding_D=row["embeddings"],
        colour_lab=(lightness, red, yellow),
    )


def _boxes(lesions: Sequence[Lesion]) -> list[Box]:
    return [lesion.box for lesion in lesions]
