"""Removing images from a bundle.

The embedding index and the out-of-distribution check lose them. Weights cannot, so the provenance
lists the removed images that the members were trained on.
"""

import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from skindx.core.atomic_files import finish_folder, is_unfinished
from skindx.data.blocklist import Blocked
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.change import add_provenance, set_embedding_index, set_learned_parts
from skindx.models.bundle.files import INDEX
from skindx.models.bundle.provenance import (
    FOLD_TRAINED_IMAGES,
    MANIFEST_SHA256,
    REMOVED_MAYBE_TRAINED_ON,
    REMOVED_TRAINED_ON,
    provenance_value,
)
from skindx.models.embedding_index.index import EmbeddingIndex
from skindx.models.ood.stored import OodPart


def uses(path: Path, entries: Iterable[Blocked]) -> dict[str, str | None]:
    """Return what a bundle did with images that were taken down: SHA-256 -> split.

    The split is that of the manifest which the bundle was trained on: it learned from train, was
    chosen by val, measured by test; "" if the image was not in it. None: the bundle is of an
    older version and its manifest another one, so the split is unknown. Members that were trained
    in folds learned from val as well. Raises UserError for no bundle.
    """
    bundle = open_bundle(path)
    provenance, seen = bundle.spec.provenance, bundle.seen()
    manifest = provenance_value(provenance, MANIFEST_SHA256)
    folded = provenance_value(provenance, FOLD_TRAINED_IMAGES, 0) > 0
    trained_on = provenance_value(provenance, REMOVED_TRAINED_ON, [])
    found: dict[str, str | None] = {}
    for entry in entries:
        if entry.sha256 in trained_on:
            found[entry.sha256] = "train"
            continue
        split: str | None
        if seen is not None:
            split = seen.get(entry.sha256, "")
        else:
            split = entry.manifests.get(str(manifest))
        found[entry.sha256] = "train" if split == "val" and folded else split
    return found


def record_removal(path: Path, used: Mapping[str, str | None]) -> None:
    """Write into provenance and model card which removed images the bundle learned from.

    What is written already is not written again.
    """
    provenance = open_bundle(path).spec.provenance
    facts = {}
    for key, split in ((REMOVED_TRAINED_ON, "train"), (REMOVED_MAYBE_TRAINED_ON, None)):
        before = provenance_value(provenance, key, [])
        listed = sorted({*before, *(sha256 for sha256, of in used.items() if of == split)})
        if listed != before:
            facts[key] = listed
    if facts:
        add_provenance(path, facts)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many images the parts of a bundle lose to a take-down; both 0: nothing changes."""

    gallery: int = 0
    ood: int = 0
    """Of the images that the out-of-distribution check was fitted on."""
    refitted: bool = False
    """Whether the check is fitted again on the rest; otherwise it goes, if it loses images."""


def would_forget(path: Path, sha256s: Collection[str]) -> Forgotten:
    """Return what `forget` would take out of a bundle, and write nothing. Raises UserError."""
    return _without(open_bundle(path), sha256s)[0]


def forget(path: Path, sha256s: Collection[str]) -> Forgotten:
    """Take images and their groups out of a bundle's embedding index and OOD check, in one step.

    An image goes with all of its group: what shows the same lesion may be a copy that no hash
    finds. The check is fitted again on the rest, or goes where too few images are left. That of a
    bundle of version 0.1 holds no image, only means over many, and stays. Nothing is written where
    none of them is there. Raises UserError for no bundle.
    """
    forgotten, index, check = _without(open_bundle(path), sha256s)
    if forgotten.ood:
        set_learned_parts(path, index, check)
    elif forgotten.gallery and index is not None:
        set_embedding_index(path, index)
    return forgotten


def _without(
    bundle: Bundle, sha256s: Collection[str]
) -> tuple[Forgotten, EmbeddingIndex | None, OodPart | None]:
    """Return what goes, and the index and the check that are left; None: there is none."""
    index, images, spec = bundle.gallery(), bundle.ood_images(), bundle.spec.ood
    left = index.without(sha256s) if index is not None else None
    shown = len(index) - len(left) if index is not None and left is not None else 0
    if images is None or spec is None:
        return Forgotten(shown), left, None
    rest = images.without(sha256s)
    lost = len(images) - len(rest)
    check = OodPart.fit(spec.detectors, rest) if lost else None
    return Forgotten(shown, lost, check is not None), left, check


def clear_leftovers(path: Path) -> None:
    """Finish or undo what a kill cut short while the bundle was written again.

    An unfinished copy holds an older embedding index with the removed images. Call this only while
    nothing else writes the bundle.
    """
    path = path.resolve()
    finish_folder(path, INDEX)
    mine = re.compile(re.escape(path.name) + r"\.tmp-[a-z0-9_]{8}(\.old)?")
    around = path.parent.iterdir() if path.parent.is_dir() else ()
    unfinished = sorted(path for path in around if mine.fullmatch(path.name))
    if not path.exists():  # killed between the two renames: the older one is whole
        for old in (path for path in unfinished if path.suffix == ".old"):
            old.replace(path)
    within = path.iterdir() if path.is_dir() else ()
    for rest in (*unfinished, *(other for other in within if is_unfinished(other.name))):
        shutil.rmtree(rest, ignore_errors=True)
