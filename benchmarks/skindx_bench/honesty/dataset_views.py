"""Views of a dataset, whose images stay in place: a fold of all of it, or fewer classes."""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from skindx.core.atomic_files import FolderKind, atomic_folder
from skindx.core.errors import UserError
from skindx.data.layout import CACHE, MANIFEST, STORE, TAXONOMY
from skindx.data.manifest import Record, Split, read_manifest, write_manifest
from skindx.data.splits.split import fold_groups
from skindx.taxonomy import Taxonomy

VIEW = FolderKind("a view of a dataset", MANIFEST, (TAXONOMY, STORE, CACHE))


def fold_view(dataset: Path, out: Path, fold: int, folds: int, seed: int = 0) -> Path:
    """Write `out`, a dataset folder whose test split is one fold of all of `dataset`.

    The images stay where they are. Raises UserError for a dataset with fewer groups than parts.
    """
    records = refold(read_manifest(dataset), fold, folds, seed)
    with atomic_folder(out, VIEW) as folder:
        (folder / STORE).symlink_to((dataset / STORE).resolve())
        shutil.copyfile(dataset / TAXONOMY, folder / TAXONOMY)
        write_manifest(folder, records)
    return out


def refold(records: Sequence[Record], fold: int, folds: int, seed: int = 0) -> list[Record]:
    """Return `records` split for fold 0 .. folds - 1: test, val, and the rest to train on.

    Whole groups are divided into 2 x `folds` parts, stratified by class: two parts are the test
    split, the next one is val, so that the test splits of all folds are disjoint and make up the
    dataset. There is no calibration split: nothing conformal is fitted in a cross-validation.
    """
    if not 0 <= fold < folds or folds < 2:
        raise UserError(f"fold {fold} of {folds} is not there; count from 0, of at least 2 folds.")
    groups = [(record.group, record.label) for record in records]
    parts = 2 * folds
    if len({group for group, _ in groups}) < parts:
        raise UserError(f"{folds} folds need at least {parts} groups; ask for fewer folds.")
    part_of = fold_groups(groups, parts, seed)
    splits: dict[int, Split] = {
        2 * fold: "test",
        2 * fold + 1: "test",
        (2 * fold + 2) % parts: "val",
    }
    return [
        dataclasses.replace(record, split=splits.get(part_of[record.group], "train"), fold=None)
        for record in records
    ]


def class_view(dataset: Path, out: Path, left_out: Collection[str]) -> Path:
    """Write `out`, a dataset folder of the same images and splits without some classes.

    The images stay where they are. Raises UserError for a class that the dataset does not have,
    and where fewer than two classes are left.
    """
    records = read_manifest(dataset)
    present = {record.label for record in records}
    if unknown := sorted(set(left_out) - present):
        raise UserError(
            f"{dataset} has no images of {', '.join(unknown)}; it has {', '.join(sorted(present))}."
        )
    if len(present - set(left_out)) < 2:
        raise UserError(
            f"{dataset} without {', '.join(sorted(left_out))} has fewer than 2 classes."
        )
    taxonomy = Taxonomy.load(dataset / TAXONOMY)
    kept = [key for key in taxonomy.keys if key not in left_out]
    with atomic_folder(out, VIEW) as folder:
        (folder / STORE).symlink_to((dataset / STORE).resolve())
        taxonomy.subset(kept).save(folder / TAXONOMY)
        write_manifest(folder, [record for record in records if record.label not in left_out])
    return out


def paired_classes(records: Sequence[Record]) -> tuple[tuple[str, ...], ...]:
    """Return the classes in pairs, the largest with the smallest, so that each is left out once.

    Of an odd number the middle one is alone.
    """
    counts = Counter(record.label for record in records)
    ordered = sorted(counts, key=lambda label: (-counts[label], label))
    half = len(ordered) // 2
    pairs = [(ordered[n], ordered[-1 - n]) for n in range(half)]
    return (*pairs, *((label,) for label in ordered[half : len(ordered) - half]))
