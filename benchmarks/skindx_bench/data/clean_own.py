"""The project's own methods: `python -m skindx_bench.data.clean_own METHOD FOLDER ANSWER`.

They run as processes of their own, as the peers do, so that time and memory are measured alike.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx import __version__
from skindx.core.atomic_files import write_json
from skindx.core.machine import cpu_count
from skindx.data.copies.deduplicate import DedupSettings
from skindx.data.copies.hash_links import EQUAL, near_links
from skindx.data.splits.groups import GroupSettings
from skindx.imaging.decode import decode
from skindx.imaging.hashes import HashKind
from skindx.workers.task_runner import LocalRunner
from skindx_bench.data.clean_peers import memory_mb
from skindx_bench.data.clean_plants import IMAGES
from skindx_bench.data.screen import hash_images

# N = images, K = kinds of hash, O = orientations, L = links, P = pairs

BOTH: tuple[HashKind, ...] = ("perceptual", "difference")
FARTHEST = 14
"""Pairs within so many bits are ranked, of 64."""
PHASH_RADIUS = 10
"""What imagededup takes as the threshold of its perceptual hash."""

Pair = tuple[str, str, float, bool]
Said = dict[str, list[Any]]


def copies(folder: Path, names: list[str]) -> Said:
    """Rank what a build groups: links of the hashes, and copies verified by their key points.

    Of a pair within the radius of duplicates one image would be dropped: it is accepted, and stands
    behind all verified ones. Farther hashes link only what the pixels confirm.
    """
    from skindx.data.copies.find import find_copies
    from skindx.data.copies.verify import ACCEPT

    paths = [f"{IMAGES}/{name}" for name in names]
    links_L3 = _near(folder, names, GroupSettings().radius)
    near_L2 = links_L3[:, :2]
    copies_found = find_copies(
        folder, paths, runner=LocalRunner(threads()), hash_candidates=near_L2
    )
    dropped_L = links_L3[:, 2] <= DedupSettings().radius
    by_hash = [(int(i), int(j)) for i, j in near_L2[dropped_L]]
    found: dict[tuple[int, int], tuple[float, bool]] = dict.fromkeys(by_hash, (ACCEPT, True))
    for copy in copies_found:
        _, linked = found.get((copy.first, copy.second), (0.0, False))
        score = max(copy.probability, ACCEPT) if linked else copy.probability
        found[copy.first, copy.second] = score, linked or copy.same
    pairs = [(names[i], names[j], score, same) for (i, j), (score, same) in found.items()]
    return {"pairs": pairs, "off_topic": _no_skin(folder, names)}


def hashes(folder: Path, names: list[str]) -> Said:
    """Rank by the larger distance of perceptual and difference hash, in eight orientations."""
    radius = GroupSettings().radius
    pairs = [
        (names[i], names[j], -float(max(distance, 0)), bool(distance <= radius))
        for i, j, distance in _near(folder, names, FARTHEST).tolist()
    ]
    return {"pairs": pairs, "off_topic": []}


def phash(folder: Path, names: list[str]) -> Said:
    """Rank by the distance of the perceptual hash alone, as the images lie."""
    codes_N = _codes(folder, names, ("perceptual",))[:, 0, 0]
    pairs = []
    for i in range(len(names) - 1):
        distance_M = np.bitwise_count(codes_N[i + 1 :] ^ codes_N[i])
        for j in np.flatnonzero(distance_M <= FARTHEST).tolist():
            distance = int(distance_M[j])
            pairs.append((names[i], names[i + 1 + j], -float(distance), distance <= PHASH_RADIUS))
    return {"pairs": pairs, "off_topic": []}


METHODS: dict[str, Callable[[Path, list[str]], Said]] = {
    "skindx": copies,
    "hashes": hashes,
    "phash": phash,
}


def threads() -> int:
    """Return how many threads the bench allows, as the peers' libraries are set too."""
    return int(os.environ.get("OMP_NUM_THREADS") or cpu_count())


def _codes(folder: Path, names: list[str], kinds: tuple[HashKind, ...]) -> NDArray[np.uint64]:
    codes = [hash_images([(folder / IMAGES / name).read_bytes()], kinds) for name in names]
    return np.concatenate(codes)


def _near(folder: Path, names: list[str], radius: int) -> NDArray[np.int64]:
    """Return rows (i, j, distance) of all near pairs, also of those with equal codes."""
    links_L3 = near_links(_codes(folder, names, BOTH), radius)
    links_L3[links_L3[:, 2] == EQUAL, 2] = 0
    return links_L3


def _no_skin(folder: Path, names: list[str]) -> list[tuple[str, float]]:
    """Rank images by how sure the gates of a build are that they show no skin."""
    from skindx.imaging.skin_content import not_skin_score

    return [(name, not_skin_score(decode((folder / IMAGES / name).read_bytes()))) for name in names]


def main(arguments: list[str]) -> int:
    """Let a method look at a folder, and write its answer."""
    import cv2

    method, folder, file = arguments
    cv2.setNumThreads(threads())
    names = sorted(path.name for path in (Path(folder) / IMAGES).iterdir())
    said = METHODS[method](Path(folder), names)
    write_json(Path(file), {**said, "memory_mb": memory_mb(), "version": __version__})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
