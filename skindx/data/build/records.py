"""The rows of the manifest: what is known of each image that stays, its boxes included."""

from collections.abc import Iterable, Mapping, Sequence

from skindx.data.box import UNKNOWN_SIZE, Box, BoxedImage
from skindx.data.build.run import Run
from skindx.data.dedup.rank import LabelledImage
from skindx.data.ledger import file_name
from skindx.data.manifest import Record
from skindx.data.splits.freeze import Places
from skindx.data.splits.split import assert_disjoint
from skindx.taxonomy import Taxonomy


def make_records(
    run: Run,
    kept: Sequence[LabelledImage],
    groups: Mapping[str, str],
    by_sha: Mapping[str, Sequence[LabelledImage]],
    taxonomy: Taxonomy,
    *,
    placed: Places,
) -> list[Record]:
    """Write down what is known of each kept image, in the taxonomy's order."""
    names = {(p.row.sha256, file_name(p.row.url)) for same in by_sha.values() for p in same}
    index = BoxIndex(run.boxes, sorted(names))
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
            boxes=_boxes(run, index, by_sha[row.sha256]),
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
        )
        for image in kept
        for row in (image.row,)
    ]
    if run.missized:
        run.notes.append(
            f"{len(run.missized)} images have another size than the box file says, such as "
            f"{run.missized[0]}; their boxes are left out."
        )
    if run.protruding:
        run.notes.append(
            f"{len(run.protruding)} images have boxes in the box file that are empty or stand "
            f"out of the image, such as {run.protruding[0]}; what lies outside is left out."
        )
    if index.ambiguous:
        run.notes.append(
            f"{len(index.ambiguous)} file names of the box file are borne by several images, "
            f"such as {min(index.ambiguous)}; their boxes are left out."
        )
    assert_disjoint([(record.group, record.split) for record in rows])
    order = {key: position for position, key in enumerate(taxonomy.keys)}
    return sorted(rows, key=lambda record: (order[record.label], record.sha256))


def _boxes(run: Run, index: "BoxIndex", same: Sequence[LabelledImage]) -> tuple[Box, ...] | None:
    """Return the boxes of an image, or None when the box file does not name it.

    The same bytes may have come under several names, and one of them is in the file.
    """
    if same[0].row.sha256 in run.drawn:
        return run.drawn[same[0].row.sha256]
    for image in same:
        entry = index.find(image.row.sha256, file_name(image.row.url))
        if entry is None:
            continue
        size = (image.screened.width, image.screened.height)
        if (entry.width, entry.height) in (size, UNKNOWN_SIZE):
            if entry.refused:
                run.protruding.append(image.row.url)
            # A box that is nowhere in the image does not say that there is no lesion.
            return None if entry.refused and not entry.boxes else entry.boxes
        run.missized.append(image.row.url)
    return None


class BoxIndex:
    """Looks images up in what a box file says; a name that two images bear finds none."""

    def __init__(
        self, images: Mapping[str, BoxedImage], names: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Take the entries of a box file, and (sha256, file name) of every image there is."""
        self._by_name = {name: image for name, image in images.items() if not image.sha256}
        self._by_sha = {image.sha256: image for image in images.values() if image.sha256}
        owner: dict[str, str] = {}
        self.ambiguous: set[str] = set()
        """Names in the file that several different images bear."""
        for sha256, name in names:
            if name in images and owner.setdefault(name, sha256) != sha256:
                self.ambiguous.add(name)

    def find(self, sha256: str, name: str) -> BoxedImage | None:
        """Return the entry of an image, None when the file does not name it."""
        if sha256 in self._by_sha:
            return self._by_sha[sha256]
        return None if name in self.ambiguous else self._by_name.get(name)
