"""Scores of how unusual each image is, as a table; nothing here knows the model.

`skindx audit DATASET --off-topic` makes it from embeddings.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings

# N = images

OOD = "ood.parquet"
THRESHOLD = 3.0
_ADVICE = "make it with `skindx audit DATASET --off-topic`"


class OodSettings(Settings):
    """A table of out-of-distribution (OOD) scores, and from which score on a person looks.

    Such images are flagged and never dropped: what is rare is unusual too.
    """

    path: Path
    threshold: float = Field(
        default=THRESHOLD,
        gt=0,
        le=1e9,
        description="robust standard deviations above the median image",
    )


@dataclass(frozen=True)
class OodScores:
    """One score an image, and what made it."""

    sha256s: tuple[str, ...]
    scores_N: NDArray[np.float64]
    """Robust standard deviations above the dataset's median image; higher is more unusual."""
    model: str


def write_ood(path: Path, scores: OodScores) -> None:
    """Write columns sha256, score and model, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "sha256": pa.array(scores.sha256s, pa.string()),
            "score": pa.array(scores.scores_N, pa.float32()),
            "model": pa.array([scores.model] * len(scores.sha256s), pa.string()),
        }
    )
    with atomic_file(path) as temporary:
        pq.write_table(table, temporary)


def read_ood(path: Path) -> OodScores:
    """Read a table of scores. Raises UserError when it is absent, damaged, or of several models."""
    import pyarrow as pa

    if not path.is_file():
        raise UserError(f"{path} does not exist; {_ADVICE}.")
    try:
        table = read_parquet(path, ["sha256", "score", "model"])
        sha256s = tuple(str(sha256) for sha256 in table["sha256"].to_pylist())
        models = set(table["model"].to_pylist())
        scores_N = table["score"].to_numpy().astype(np.float64)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no table of OOD scores ({error}); {_ADVICE}.") from None
    if len(models) != 1:
        raise UserError(f"{path} holds scores of {len(models)} models; {_ADVICE}.")
    if not np.isfinite(scores_N).all():
        raise UserError(f"{path} holds scores that are no numbers; {_ADVICE}.")
    return OodScores(sha256s, scores_N, str(models.pop()))


def unusual(settings: OodSettings, sha256s: Collection[str]) -> tuple[dict[str, float], int, str]:
    """Return the images that score at least the threshold, how many have a score, and the model.

    Raises UserError when none has one: the table is then of another dataset.
    """
    table = read_ood(settings.path)
    wanted = set(sha256s)
    known = {
        sha256: score
        for sha256, score in zip(table.sha256s, table.scores_N.tolist(), strict=True)
        if sha256 in wanted
    }
    if not known and wanted:
        raise UserError(
            f"{settings.path} knows none of the {len(wanted)} images, such as {min(wanted)}; "
            f"{_ADVICE}."
        )
    high = {sha256: score for sha256, score in known.items() if score >= settings.threshold}
    return high, len(known), table.model
