"""Cases that look like this one to the networks, with the labels that the dataset confirms."""

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
    names = {each.key: each.name for each in predictor.taxonomy.classes}
    cases = tuple(
        Similar(
            key=each.row.label,
            name=names.get(each.row.label, each.row.label),
            similarity=each.cosine,
            sha256=each.row.sha256,
            licence=each.row.licence,
            credit=each.row.attribution or each.row.creator,
            page_url=each.row.page_url,
        )
        for each in near
    )
    return cases, tuple(each.thumbnail for each in near)
