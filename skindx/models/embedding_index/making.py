"""Make a bundle's embedding index of the images that its members were trained on."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import Record
from skindx.data.publish.decide import PRIVATE_REASONS, withheld_of
from skindx.data.publish.row import web_address
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.models.embedding_index.index import EmbeddingIndex, IndexRow
from skindx.models.ensemble.ensemble import Ensemble, EnsembleOutput
from skindx.models.ensemble.predicting import outputs_of_records

PerBatch = Callable[[Sequence[Record], Sequence[NDArray[np.uint8]], EnsembleOutput], None]
"""Called with the records, the pixels and the outputs of a batch."""

CAP = 20_000
LONGEST_SIDE = 224


def make_embedding_index(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    cap: int = CAP,
    also: PerBatch | None = None,
) -> EmbeddingIndex:
    """Embed images of `dataset`, at most `cap`, in one pass that holds a batch of them at a time.

    `also` is called with each batch, its pixels, and what the networks saw.

    An image has a thumbnail where `skindx publish` would give it away: its licence allows that,
    and which no person and no open flag excludes. Raises UserError for an image that is gone
    or damaged.
    """
    chosen = stratified(records, cap)
    withheld = withheld_of(dataset, chosen)
    # An image is embedded as it is: flipped and turned views only serve the probabilities.
    plain = Ensemble(tuple(replace(member, views=1) for member in ensemble.members))
    embeddings, thumbnails = [], []
    for batch, images, output in outputs_of_records(plain, dataset, chosen):
        embeddings.append(output.embeddings_ND.astype(np.float16))
        if also:
            also(batch, images, output)
        thumbnails += [
            b"" if record.sha256 in withheld else small_jpeg(pixels, LONGEST_SIDE)
            for record, pixels in zip(batch, images, strict=True)
        ]
    number = {group: n for n, group in enumerate(dict.fromkeys(record.group for record in chosen))}
    private = {sha256 for sha256, (reason, _) in withheld.items() if reason in PRIVATE_REASONS}
    rows = [
        _row(record, number[record.group], named=record.sha256 not in private) for record in chosen
    ]
    return EmbeddingIndex.of(rows, np.concatenate(embeddings), thumbnails)


def stratified(records: Sequence[Record], cap: int) -> list[Record]:
    """Return at most `cap` records, of each class its share and at least one, in their order.

    Which ones their hashes decide, so that the same dataset gives the same index.
    """
    if len(records) <= cap:
        return list(records)
    of_class: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.sha256):
        of_class[record.label].append(record)
    # The first of every class comes before any second, then the shares grow evenly.
    ranked = sorted(
        (place / len(members), record.sha256)
        for members in of_class.values()
        for place, record in enumerate(members)
    )
    kept = {sha256 for _, sha256 in ranked[:cap]}
    return [record for record in records if record.sha256 in kept]


def _row(record: Record, group: int, *, named: bool) -> IndexRow:
    row = IndexRow(
        record.sha256, record.label, group, record.licence, confirmed_by=record.confirmed_by
    )
    if not named:
        return row
    return replace(
        row,
        creator=record.creator,
        attribution=record.attribution,
        page_url=web_address(record.page_url),
    )
