"""The embedding index of a bundle: embeddings of training images, with labels and credits.

The nearest ones are shown beside a diagnosis; a thumbnail is shown where the licence allows it.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.manifest import Record, table_of
from skindx.data.publish.published_rows import PRIVATE_REASONS, web_address, withheld_of
from skindx.data.typed_rows import Int32, arrow_schema
from skindx.imaging.resize import small_jpeg
from skindx.models.bounded_files import AGAIN, load_tensors, read_rows, save_tensors
from skindx.models.ensemble import Ensemble, EnsembleOutput, outputs_of_records

ROWS, TENSORS = "gallery/rows.parquet", "gallery/pictures.safetensors"

_CHUNK = 4096  # rows that are single precision at a time

_TENSORS = {"embeddings": ("F16", 2), "thumbnails": ("U8", 1), "offsets": ("I64", 1)}
_LARGEST_COPY = 2**20
"""Bytes of one small JPEG."""

# N = images of the index, Q = images that are compared with it, D = dimensions


class EmbeddingIndexSpec(Settings):
    """A bundle's index entry of its embedding index."""

    pictures: int = Field(ge=0)
    shown: int = Field(ge=0)
    """Number of images with a small copy, which their licence must allow."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One image; `label` is a class's key. The credit is empty where no name may be shown."""

    sha256: str
    label: str
    group: Int32
    """Images of one lesion, patient or cluster of duplicates have the same."""
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    page_url: str = ""
    confirmed_by: str = ""
    """How the source says that the label was confirmed; empty: it does not say."""


@dataclass(frozen=True, slots=True)
class SimilarCase:
    """A row of the index and how near it is; `thumbnail` is a JPEG, empty if not to be shown."""

    row: IndexRow
    cosine: float
    thumbnail: bytes


@dataclass(frozen=True)
class EmbeddingIndex:
    """Rows, their embeddings of length 1 in half precision, and small copies end to end."""

    rows: tuple[IndexRow, ...]
    embeddings_ND: torch.Tensor
    thumbnails: torch.Tensor
    """uint8, all JPEGs one after the other."""
    offsets: NDArray[np.int64]
    """N + 1 places in `thumbnails`; an image without a copy begins where the next one does."""

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[IndexRow],
        embeddings_ND: NDArray[np.floating],
        thumbnails: Iterable[bytes],
    ) -> Self:
        """Make an index. Raises ValueError for parts of different lengths."""
        rows, jpegs = tuple(rows), list(thumbnails)
        if not len(rows) == len(jpegs) == len(embeddings_ND):
            raise ValueError(
                f"{len(rows)} rows, {len(embeddings_ND)} embeddings, {len(jpegs)} thumbnails"
            )
        offsets = np.cumsum([0, *map(len, jpegs)], dtype=np.int64)
        data = torch.from_numpy(np.frombuffer(b"".join(jpegs), np.uint8).copy())
        return cls(rows, torch.from_numpy(embeddings_ND.astype(np.float16)), data, offsets)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def spec(self) -> EmbeddingIndexSpec:
        return EmbeddingIndexSpec(pictures=len(self), shown=int((np.diff(self.offsets) > 0).sum()))

    def thumbnail(self, index: int) -> bytes:
        """Return an image's small JPEG; empty where its licence does not allow showing it."""
        start, end = self.offsets[index : index + 2]
        data: bytes = self.thumbnails[start:end].numpy().tobytes()
        return data

    def cosines(self, embeddings_QD: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the dot products Q x N with embeddings of length 1, in single precision."""
        if embeddings_QD.shape[1] != self.embeddings_ND.shape[1]:
            raise UserError(
                f"the embedding index of the bundle has {self.embeddings_ND.shape[1]} numbers for "
                f"each image, but its networks compute {embeddings_QD.shape[1]}; {AGAIN}."
            )
        queries_QD = torch.from_numpy(np.ascontiguousarray(embeddings_QD))
        chunks = torch.split(self.embeddings_ND, _CHUNK)
        parts = [torch.nn.functional.linear(part.float(), queries_QD) for part in chunks]
        products_QN: NDArray[np.float32] = torch.cat(parts).T.nan_to_num(0).clamp(-1, 1).numpy()
        return products_QN

    @cached_property
    def groups(self) -> dict[str, int]:
        return {row.sha256: row.group for row in self.rows}

    def nearest(
        self, embedding_D: NDArray[np.float32], k: int, others_than: Collection[str] = ()
    ) -> list[SimilarCase]:
        """Return the k nearest images, nearest first, no two of one group.

        None is of the group of one of `others_than`, which are SHA-256.
        """
        if not len(self):
            return []
        left_out = {self.groups.get(sha256) for sha256 in others_than}
        (cosine_N,) = self.cosines(embedding_D[None])
        nearest: dict[int, SimilarCase] = {}
        for index in np.argsort(-cosine_N, kind="stable").tolist():
            if len(nearest) == k:
                break
            row = self.rows[index]
            if row.group not in nearest and row.group not in left_out:
                nearest[row.group] = SimilarCase(row, float(cosine_N[index]), self.thumbnail(index))
        return list(nearest.values())

    def without(self, sha256s: Collection[str]) -> Self:
        """Return the index without these images and without all of their groups."""
        groups = {row.group for row in self.rows if row.sha256 in sha256s}
        kept = [index for index, row in enumerate(self.rows) if row.group not in groups]
        return self.from_rows(
            [self.rows[index] for index in kept],
            self.embeddings_ND[kept].numpy(),
            [self.thumbnail(index) for index in kept],
        )

    def save(self, folder: Path) -> None:
        """Write it below a bundle's folder."""
        import pyarrow.parquet as pq

        (folder / ROWS).parent.mkdir(parents=True)
        pq.write_table(table_of(self.rows, arrow_schema(IndexRow)), folder / ROWS)
        tensors = {
            "embeddings": self.embeddings_ND.contiguous(),
            "thumbnails": self.thumbnails.contiguous(),
            "offsets": torch.from_numpy(self.offsets),
        }
        save_tensors(tensors, folder / TENSORS)

    @classmethod
    def load(cls, folder: Path, spec: EmbeddingIndexSpec) -> Self:
        """Read it from a bundle's folder; embeddings and copies stay on disk until looked at.

        Raises UserError for files that do not fit each other or the index.
        """
        table = read_rows(folder / ROWS, arrow_schema(IndexRow), optional=("confirmed_by",))
        tensors = load_tensors(folder / TENSORS, _TENSORS)
        embeddings_ND, offsets = tensors["embeddings"], tensors["offsets"].numpy()
        ends = [0, len(tensors["thumbnails"])]
        fits = len(table) == spec.pictures == len(embeddings_ND) == len(offsets) - 1
        if (
            not fits
            or list(offsets[[0, -1]]) != ends
            or (np.diff(offsets) < 0).any()
            or (np.diff(offsets) > _LARGEST_COPY).any()
            or any(column.null_count for column in table.columns)
        ):
            raise UserError(
                f"{folder / ROWS} and {folder / TENSORS} do not fit each other or the bundle; "
                f"{AGAIN}."
            )
        rows = tuple(
            IndexRow(**{**row, "page_url": web_address(row["page_url"])})
            for row in table.to_pylist()
        )
        return cls(rows, embeddings_ND, tensors["thumbnails"], offsets)


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
    embeddings, thumbnails = [], []
    for batch, images, output in outputs_of_records(plain_views(ensemble), dataset, chosen):
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
    return EmbeddingIndex.from_rows(rows, np.concatenate(embeddings), thumbnails)


def plain_views(ensemble: Ensemble) -> Ensemble:
    """Return an ensemble that embeds images as they are: other views serve the probabilities."""
    return Ensemble(tuple(replace(member, views=1) for member in ensemble.members))


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
