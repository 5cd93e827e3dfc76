"""The rows of the manifest: what is known of each image that stays, its boxes included."""

from collections.abc import Mapping, Sequence
from itertools import chain

from skindx.data.box import Box
from skindx.data.boxes.box_file import refuse_all
from skindx.data.boxes.joining import Stored, join
from skindx.data.build.run import Run
from skindx.data.copies.deduplicate import LabelledImage
from skindx.data.manifest import Record
from skindx.data.splits.freeze import Placements
from skindx.data.splits.split import assert_disjoint
from skindx.taxonomy import Taxonomy


def make_records(
    run: Run,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    by_sha: Mapping[str, Sequence[LabelledImage]],
    taxonomy: Taxonomy,
    *,
    placed: Placements,
) -> list[Record]:
    """Write down what is known of each kept image, in the taxonomy's order."""
    boxes = _boxes(run, kept, by_sha)
    rows = [
        Record(
            path=row.path,
            sha256=row.sha256,
            perceptual_hash=image.screened.perceptual_hash,
            width=image.screened.width,
            height=image.screened.height,
            label=image.label,
            group=groups[row.sha256],
            split=placed[groups[row.sha256]].split,
            boxes=boxes.get(row.sha256),
            source=row.source,
            source_url=row.url,
            page_url=row.page_url,
            licence=row.licence,
            creator=row.creator,
            attribution=row.attribution,
            retrieved=row.retrieved,
            skin_type=row.skin_type,
            fold=placed[groups[row.sha256]].fold,
            caption=next(filter(None, (p.row.caption for p in by_sha[row.sha256])), ""),
            confirmed_by=row.confirmed_by,
        )
        for image in kept
        for row in (image.row,)
    ]
    assert_disjoint([(record.group, record.split) for record in rows])
    order = {key: position for position, key in enumerate(taxonomy.keys)}
    return sorted(rows, key=lambda record: (order[record.label], record.sha256))


def _boxes(
    run: Run,
    kept: Sequence[LabelledImage],
    by_sha: Mapping[str, Sequence[LabelledImage]],
) -> dict[str, tuple[Box, ...]]:
    """Return SHA-256 -> boxes of the images that people or the recipe's box file know.

    The same bytes may have come under several names, and one of them is in the file.
    """
    drawn: dict[str, tuple[Box, ...]] = {}
    if run.boxes is not None:
        images = {
            image.row.sha256: Stored(
                (image.screened.width, image.screened.height), run.out / image.row.path
            )
            for image in kept
        }
        names = ((p.row.sha256, p.row.url) for same in by_sha.values() for p in same)
        others = ((issue.sha256, issue.url) for issue in run.issues if issue.sha256)
        joined = join(run.boxes, images, chain(names, others), cut=True)
        if run.settings.boxes and run.settings.boxes.strict:
            refuse_all(run.settings.boxes.path, joined.problems())
        drawn = {each.sha256: each.image.boxes for each in joined.entries}
        run.box_counts = joined.counts()
        run.notes += run.box_counts.lines()
    return drawn | dict(run.drawn)
