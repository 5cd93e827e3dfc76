"""The table of embeddings, which `skindx dedup embed` makes; nothing here knows the models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, read_parquet
from skindx.core.errors import UserError

# N = images, D = dimensions

EMBEDDINGS = "embeddings.parquet"
_ADVICE = "make it with `skindx dedup embed DATASET --weights FILE`"
LABEL_FEATURES = "label_features.parquet"
"""The same of all layers, for the label review: nothing else should search with them."""


@dataclass(frozen=True)
class Embeddings:
    """One vector of length 1 an image, and the model that made them."""

    sha256s: tuple[str, ...]
    vectors_ND: NDArray[np.float32]
    model: str
    """Its name and the start of its weights' SHA-256."""

    def of(self, sha256s: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the positions in `sha256s` that have a vector, and these vectors."""
        row = {sha256: number for number, sha256 in enumerate(self.sha256s)}
        known = np.array([i for i, sha256 in enumerate(sha256s) if sha256 in row], dtype=np.intp)
        return known, self.vectors_ND[[row[sha256s[i]] for i in known]]


def write_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Write columns sha256, vector (float16) and model, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(embeddings.vectors_ND.astype(np.float16).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(flat, embeddings.vectors_ND.shape[1])
    sha256s = pa.array(embeddings.sha256s, pa.string())
    models = pa.array([embeddings.model] * len(embeddings.sha256s), pa.string())
    with atomic_file(path) as temporary:
        pq.write_table(pa.table({"sha256": sha256s, "vector": vectors, "model": models}), temporary)


def read_embeddings(path: Path) -> Embeddings:
    """Read a table of embeddings. Raises UserError when it is absent, or of several models."""
    import pyarrow as pa

    if not path.is_file():
        raise UserError(f"{path} does not exist; {_ADVICE}.")
    try:
        table = read_parquet(path, ["sha256", "vector", "model"])
        sha256s = tuple(str(sha256) for sha256 in table["sha256"].to_pylist())
        models = set(table["model"].to_pylist())
        flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors_ND = np.asarray(flat.reshape(len(table), -1), np.float32)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no table of embeddings ({error}); {_ADVICE}.") from None
    if len(models) != 1:
        raise UserError(f"{path} holds embeddings of {len(models)} models; {_ADVICE}.")
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    if not np.all(np.isfinite(length_N1) & (length_N1 > 0)):
        raise UserError(f"{path} holds vectors without a direction; {_ADVICE}.")
    return Embeddings(sha256s, vectors_ND / length_N1, str(models.pop()))


def label_table(dataset: Path) -> Path:
    """Return the table that the label review uses: of all layers where there is one."""
    features = dataset / LABEL_FEATURES
    return features if features.is_file() else dataset / EMBEDDINGS
