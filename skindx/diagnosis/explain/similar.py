"""Cases that look like this one to the networks, with the labels of their sources."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.diagnosis.record import Similar

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

SHOWN = 6

# P = photos of a case, D = dimensions


def similar_cases(
    predictor: "Predictor", embeddings_PD: NDArray[np.float32], count: int = SHOWN
) -> tuple[tuple[Similar, ...], tuple[bytes, ...]]:
    """Return the nearest cases to the mean of a case's photos, and a JPEG of each, or b""."""
    if predictor.gallery is None:
        return (), ()
    mean_D = embeddings_PD.mean(axis=0)
    mean_D = (mean_D / max(float(np.linalg.norm(mean_D)), 1e-12)).astype(np.float32)
    near = predictor.gallery.nearest(mean_D, count)
    names = {skin_class.key: skin_class.name for skin_class in predictor.taxonomy.classes}
    cases = tuple(
        Similar(
            key=neighbour.row.label,
            name=names.get(neighbour.row.label, neighbour.row.label),
            confirmed_by=neighbour.row.confirmed_by,
            similarity=neighbour.cosine,
            sha256=neighbour.row.sha256,
            licence=neighbour.row.licence,
            credit=neighbour.row.attribution or neighbour.row.creator,
            page_url=neighbour.row.page_url,
        )
        for neighbour in near
    )
    return cases, tuple(neighbour.thumbnail for neighbour in near)
