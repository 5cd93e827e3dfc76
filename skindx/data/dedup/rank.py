"""Order of near duplicates by quality: the best one is kept."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from skindx.data.dedup.clusters import Graph, connected
from skindx.data.ledger import LedgerRow
from skindx.data.screening.resolution import NOISE, worth
from skindx.data.screening.screen import Screened


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One ledger row that became a sound, labelled image. `label` is a taxonomy key."""

    row: LedgerRow
    label: str
    screened: Screened


def best_first(images: Sequence[LabelledImage], near: Graph) -> list[int]:
    """Return positions in `images` so that of any that are linked the best comes first.

    Best: most detail, most pixels, most bytes, the smallest SHA-256. In each connected component
    the images are cut into levels of detail: from the most detailed image on, all that lie within
    NOISE of it are of its level, and the next image opens another.
    """
    details = [_detail(image) for image in images]
    components = connected(len(images), near.links_L2)
    component_N = [components[node] for node in near.node_N.tolist()]
    level, top = 0, 0.0
    last = -1
    levels = [0] * len(images)
    for i in np.lexsort((-np.array(details), component_N)).tolist():
        if component_N[i] != last:
            last, level, top = component_N[i], 0, details[i]
        elif details[i] < (1 - NOISE) * top:
            level, top = level + 1, details[i]
        levels[i] = level

    def rank(i: int) -> tuple[int, int, int, str]:
        row, screened = images[i].row, images[i].screened
        return levels[i], -screened.width * screened.height, -row.size_bytes, row.sha256

    return sorted(range(len(images)), key=rank)


def _detail(image: LabelledImage) -> float:
    pixels = image.screened.width * image.screened.height
    effective = image.screened.effective_pixels or pixels
    return worth(effective, pixels) if pixels else 0.0
