"""Copies of what is taken down: by hashes of stored images, and by pairs that a build verified."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.core.progress import Progress
from skindx.data.blocklist import KINDS, Blocked, BlockList
from skindx.data.copies.copy_records import (
    COPIES,
    answered_same,
    read_answers,
    read_copies,
    verdict,
)
from skindx.data.copies.deduplicate import DedupSettings
from skindx.data.layout import RECIPE, store_files, stored_files
from skindx.data.recipe import BuildSettings
from skindx.data.screening.screen import ScreenSettings, screen_files

# Whatever decodes is looked at: also a copy that the build found too small or too dark.
_ANYTHING = ScreenSettings(
    min_side=8,
    max_aspect=1e9,
    min_luminance=0,
    max_luminance=255,
    min_contrast=0,
    min_detail=0,
    not_skin="off",
)

# N = images, K = kinds of hash, O = orientations


def upright_codes(datasets: Iterable[Path], sha256s: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return SHA-256 -> kind of hash -> code, of the images that are stored and decode."""
    files = {s: f for s in sha256s for dataset in datasets for f in store_files(dataset, s)}
    screened = screen_files(list(files.values()), _ANYTHING, KINDS, workers=1)
    return {
        sha256: {
            kind: f"{code:016x}"
            for kind, code in zip(KINDS, verdict.codes_KO[:, 0].tolist(), strict=True)
        }
        for sha256, verdict in zip(files, screened, strict=True)
        if not verdict.reason
    }


def near_copies(dataset: Path, roots: BlockList, progress: Progress) -> dict[str, str]:
    """Return the SHA-256 of the dataset's near copies of `roots` -> the root of each."""
    recipe = dataset / RECIPE
    dedup = BuildSettings.load(recipe).dedup if recipe.exists() else DedupSettings()
    files = sorted(stored_files(dataset))
    matches = near_files(files, roots, dedup, progress)
    return {sha256: entry.sha256 for sha256, entry in matches.items()}


def near_files(
    files: Sequence[Path], roots: BlockList, dedup: DedupSettings, progress: Progress
) -> dict[str, Blocked]:
    """Return the SHA-256 (the name) of those stored files that nearly show what `roots` has."""
    screened = screen_files(
        files,
        _ANYTHING,
        dedup.hashes,
        workers=cpu_count(),
        on_progress=lambda done, total: progress("compare", done, total),
    )
    sound = [
        (file.stem, verdict)
        for file, verdict in zip(files, screened, strict=True)
        if not verdict.reason
    ]
    if not sound:
        return {}
    codes_NKO: NDArray[np.uint64] = np.stack([verdict.codes_KO for _, verdict in sound])
    matches = roots.near(codes_NKO, dedup.hashes, dedup.radius)
    return {sound[position][0]: entry for position, entry in matches.items()}


def verified_copies(
    dataset: Path, roots: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (copies, uncertain): SHA-256 of images -> the root of what they are linked to.

    `roots` holds SHA-256 -> root of what goes already. Copies are linked to it, also through other
    copies, by pairs that the last build verified or a person called the same; uncertain ones may
    be, and are for a person. Both are empty for a dataset whose build did not look for copies.
    """
    file = dataset / COPIES
    answers = answered_same(read_answers(dataset))
    records = read_copies(file) if file.exists() else []
    verdicts = {row.pair: verdict(row, answers) for row in records}
    verdicts |= {pair: "same" for pair, agreed in answers.items() if agreed}
    linked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (one, other), kind in verdicts.items():
        linked[one, kind].add(other)
        linked[other, kind].add(one)
    root_of = dict(roots)
    edge = sorted(root_of)
    while edge:
        sha256 = edge.pop()
        for other in sorted(linked[sha256, "same"] - root_of.keys()):
            root_of[other] = root_of[sha256]
            edge.append(other)
    uncertain = {
        other: root_of[sha256]
        for sha256 in sorted(root_of)
        for other in sorted(linked[sha256, "uncertain"] - root_of.keys())
    }
    return {name: root for name, root in root_of.items() if name not in roots}, uncertain


def looked_for_copies(dataset: Path) -> bool:
    """Whether the dataset's last build compared images beyond their hashes."""
    return (dataset / COPIES).exists()
