"""Images from each source and class, against the number that a recipe aims at."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence

from skindx.core.errors import UserError
from skindx.data.copies.deduplicate import Distinct
from skindx.data.manifest import Record
from skindx.data.summary import ClassCount
from skindx.taxonomy import Taxonomy


def check_targets(targets: Mapping[str, int], taxonomy: Taxonomy) -> None:
    """Raise UserError for a target of what is no class: nothing would ever be counted for it."""
    for label in sorted(set(targets) - set(taxonomy.keys)):
        match = taxonomy.find(label)
        near = [match.key] if match else difflib.get_close_matches(label, taxonomy.keys, cutoff=0.3)
        hint = f"; write {near[0]!r}" if match else f" (nearest: {', '.join(near)})" if near else ""
        raise UserError(f"targets names {label!r}, which is no class of {taxonomy.name}{hint}.")


def count_by_source(
    keys: Sequence[str], images: Distinct, records: Sequence[Record], targets: Mapping[str, int]
) -> list[ClassCount]:
    """Count the classes `keys` in their order; an image that two sources gave counts for both."""
    found = Counter((image.label, image.row.source) for same in images for image in same)
    kept = Counter((record.label, record.source) for record in records)
    return [
        ClassCount(
            key,
            targets.get(key),
            {source: n for (label, source), n in sorted(found.items()) if label == key},
            {source: n for (label, source), n in sorted(kept.items()) if label == key},
        )
        for key in keys
    ]
