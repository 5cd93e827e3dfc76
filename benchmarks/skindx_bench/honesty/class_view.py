"""A dataset without some of its classes, for what a network says of classes it never learned."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from skindx.core.atomic_files import atomic_folder
from skindx.core.errors import UserError
from skindx.data.layout import STORE, TAXONOMY
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.data.splits.fold_view import VIEW
from skindx.taxonomy import Taxonomy


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
