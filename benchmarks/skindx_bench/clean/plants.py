"""Plant copies, shared overlays and images without skin among base images, and keep the truth."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import write_csv
from skindx.core.errors import UserError
from skindx.data.synthetic.drawings import drawing
from skindx.data.synthetic.no_skin import KINDS as NO_SKIN
from skindx.data.synthetic.other_overlays import OTHER_OVERLAYS
from skindx.data.synthetic.overlays import OVERLAYS
from skindx.data.synthetic.painter import encode_jpeg
from skindx.data.synthetic.variants import make_copy
from skindx.imaging.decode import decode
from skindx_bench.clean.base import Base

IMAGES = "images"
TRUTH = "truth.csv"
SITE = 0
"""The site whose overlays different images share."""
LAID = {**OVERLAYS, **OTHER_OVERLAYS}
"""Overlay -> what lays it on an image; of the second ones nothing was learned."""
STRANGERS = {**NO_SKIN, "drawing": drawing}
"""Kind -> what paints an image without skin."""

Row = tuple[str, int, str, str, str, str]
"""(name, root, part, kind, label, origin) of an image; the origin is the base image's own name."""

# N = planted images, R = roots: different things that are shown


@dataclass(frozen=True)
class Planted:
    """A folder of images and what is known of them; row i of each column is image i.

    `names` are paths relative to the folder, sorted. Images of one root show the same. `parts` say
    why an image is there ("base", "copy", "overlay" or "off_topic"), `kinds` which kind it is of.
    """

    folder: Path
    names: tuple[str, ...]
    roots_N: NDArray[np.int64]
    parts: tuple[str, ...]
    kinds: tuple[str, ...]
    labels: tuple[str, ...]
    origins: tuple[str, ...]

    def where(self, part: str, kind: str | None = None) -> NDArray[np.int64]:
        """Return the positions of a part's images, of one kind or of all."""
        return np.array(
            [
                i
                for i, (own, its) in enumerate(zip(self.parts, self.kinds, strict=True))
                if own == part and kind in (None, its)
            ],
            np.int64,
        )

    @classmethod
    def of(cls, folder: Path, rows: Sequence[Row]) -> Self:
        """Sort rows into columns."""
        names, roots, *others = zip(*sorted(rows), strict=True)
        return cls(folder, names, np.array(roots, np.int64), *others)


def plant(
    folder: Path,
    base: Sequence[Base],
    kinds: Sequence[str],
    *,
    originals: int,
    overlaid: int,
    off_topic: int,
    seed: int,
    overlays: Sequence[str] = tuple(OVERLAYS),
) -> Planted:
    """Write the images into an empty folder, named by SHA-256, and return the truth.

    Each kind copies `originals` images. An image is copied once, unless there are too few; then
    all are copied equally often. Each overlay lies on `overlaid` images, which stand in the folder
    with it alone; each kind of off-topic image is painted `off_topic` times, each as large as a
    base image.
    Raises UserError when there are too few base images to leave some that are copied.
    """
    rng = np.random.default_rng([seed, len(base)])
    order = rng.permutation(len(base)).tolist()
    under = len(overlays) * overlaid
    if len(base) < 2 * under or len(base) - under < originals:
        raise UserError(
            f"{len(base)} different images are too few to copy {originals} of them and to lay an "
            f"overlay on {under}; give more images, or lower originals and overlaid."
        )
    rows: list[Row] = []
    own = [(image.label, image.name) for image in base]

    def put(data: bytes, suffix: str, why: tuple[int, str, str, str, str]) -> None:
        name = f"{IMAGES}/{hashlib.sha256(data).hexdigest()}{suffix}"
        (folder / name).write_bytes(data)
        rows.append((name, *why))

    (folder / IMAGES).mkdir(parents=True)
    for overlay, at in zip(np.repeat(list(overlays), overlaid).tolist(), order, strict=False):
        laid_HW3 = LAID[overlay](decode(base[at].data), SITE)
        put(encode_jpeg(laid_HW3, 90), ".jpg", (at, "overlay", overlay, *own[at]))
    rest = order[under:]
    for at in rest:
        put(base[at].data, base[at].suffix, (at, "base", "", *own[at]))
    for number in range(originals * len(kinds)):
        kind, at = kinds[number // originals], rest[number % len(rest)]
        data = make_copy(kind, decode(base[at].data), number % originals, seed)
        put(data, ".jpg", (at, "copy", kind, *own[at]))
    for number, (kind, draw) in enumerate(STRANGERS.items()):
        for count in range(off_topic):
            painted_HW3 = draw(np.random.default_rng([seed, number, count]))
            root = len(base) + number * off_topic + count
            # Their size alone must not tell them apart.
            height, width = decode(base[rest[root % len(rest)]].data).shape[:2]
            sized_HW3 = cv2.resize(painted_HW3, (width, height), interpolation=cv2.INTER_AREA)
            data = encode_jpeg(np.asarray(sized_HW3, np.uint8), 90)
            put(data, ".jpg", (root, "off_topic", kind, "", f"painted {kind} {count}"))
    write_csv(folder / TRUTH, ("name", "root", "part", "kind", "label", "origin"), sorted(rows))
    return Planted.of(folder, rows)
