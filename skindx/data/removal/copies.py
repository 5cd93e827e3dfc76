"""Hashes of stored images, and which of them are near copies of what is blocked."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.blocklist import KINDS, Blocked, BlockList
from skindx.data.dedup.select import DedupSettings
from skindx.data.layout import RECIPE, STORE
from skindx.data.recipe import BuildSettings
from skindx.data.screening.screen import ScreenSettings, screen_files
from skindx.data.store import store_files
from skindx.progress import Progress
from skindx.system import cpu_count

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
    files = sorted((dataset / STORE).glob("*/*"))
    found = near_files(files, roots, dedup, progress)
    return {sha256: entry.sha256 for sha256, entry in found.items()}


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
    found = roots.near(codes_NKO, dedup.hashes, dedup.radius)
    return {sound[position][0]: entry for position, entry in found.items()}
