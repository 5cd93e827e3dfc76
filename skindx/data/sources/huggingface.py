"""Datasets as the Hugging Face hub keeps them: Parquet shards, or files with a metadata table.

Only data is read, with pyarrow; a dataset's own loading code is neither downloaded nor run.
Layouts: https://huggingface.co/docs/hub/datasets-image
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.ledger import LedgerRow, now
from skindx.data.sources.columns import cell, read_table
from skindx.data.sources.hub_items import (
    HuggingFaceColumns,
    Item,
    from_shard,
    from_table,
    labels_of_shard,
)
from skindx.data.sources.source import LocalSource
from skindx.imaging.formats import HEAD, image_suffix, unusable

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_PATTERNS = ["*.parquet", "*.csv", "*.jsonl", "*.jpg", "*.jpeg", "*.png", "*.webp", "*.tif*"]


class HuggingFaceSource(LocalSource):
    """A dataset in a folder, or on the hub by its name and, better, its commit.

    The hub is asked only where HF_HUB_OFFLINE=0 says so. Class folders without any table are
    `kind: folder`. Splits that others made are not trusted: all are read as one.
    """

    kind: Literal["huggingface"]
    path: Path | None = None
    repo: str = Field("", pattern=r"^([\w.-]+/[\w.-]+)?$")
    revision: str | None = None
    columns: HuggingFaceColumns = HuggingFaceColumns()
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    max_bytes: int = Field(20_000_000, ge=1, le=10**15)
    """Largest image."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.path) == bool(self.repo):
            raise ValueError("give either path, a folder, or repo, as in owner/name")
        return self

    @property
    def name(self) -> str:
        """The hub's name of it, or the folder's."""
        return f"huggingface:{self.repo or (self.path or Path()).resolve().name}"

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store; return one row an image. Raises UserError."""
        root, fence = self._root()
        rows = [self._store(item, dataset) for item in self._items(root, fence)]
        if not rows:
            raise UserError(f"{root} holds tables without a single line; check the dataset.")
        return rows

    def _root(self) -> tuple[Path, Path]:
        """Return the dataset's folder, and the folder that its links may not leave."""
        if self.path is None:
            folder = _download(self.repo, self.revision)
            return folder, folder.parents[1]  # the hub's cache links into its own blobs
        if not self.path.is_dir():
            raise UserError(f"{self.path} is no folder; give one that holds a dataset.")
        return self.path, self.path.resolve()

    def _files(self, root: Path, fence: Path) -> tuple[list[Path], list[Path]]:
        """Return the Parquet shards, and the tables that name files. Raises UserError."""
        files = sorted(path for path in root.rglob("*") if path.is_file())
        tables = [path for path in files if path.name in _METADATA]
        shards = [path for path in files if path.suffix == ".parquet" and path not in tables]
        if not shards and not tables:
            raise UserError(
                f"{root} holds neither Parquet shards nor a metadata.csv or metadata.jsonl; class "
                f"folders without a table are read by `kind: folder`."
            )
        for path in (*shards, *tables):
            if not path.resolve().is_relative_to(fence.resolve()):
                raise UserError(f"{path} is a link out of the dataset; put the file itself there.")
        return shards, tables

    def labels(self) -> list[str]:
        """Return the labels of a dataset on this disk before anything is copied.

        None of one on the hub, which has to be fetched first. Raises UserError.
        """
        if self.path is None:
            return []
        root, fence = self._root()
        shards, tables = self._files(root, fence)
        labels = [label for shard in shards for label in labels_of_shard(shard, self.columns)]
        named = self.columns.model_copy(update={"image": "file_name"})
        return labels + [
            cell(line.get(self.columns.label))
            for table in tables
            for line in read_table(table, named)
        ]

    def _items(self, root: Path, fence: Path) -> Iterator[Item]:
        shards, tables = self._files(root, fence)
        for shard in shards:
            yield from from_shard(shard, shard.relative_to(root).as_posix(), self.columns)
        for table in tables:
            yield from from_table(table, root, fence.resolve(), self.columns, self.max_bytes)

    def _store(self, item: Item, dataset: Path) -> LedgerRow:
        given = {name: getattr(self, name) for name in ("licence", "creator", "attribution")}
        status, detail, sha256, path = _judge(item, self.max_bytes), item.problem, "", ""
        if status == "stored":
            sha256, path = store_bytes(dataset, item.data, image_suffix(item.data[:16]) or "")
        return LedgerRow(
            item.url,
            item.label,
            status,
            detail or _DETAILS.get(status) or ("" if path else unusable(item.data[:HEAD])[1]),
            sha256,
            path,
            len(item.data) if path else 0,
            retrieved=now(),
            source=self.name,
            **self.columns.known(item.line, **given),
        )


_DETAILS = {
    "no-label": "the dataset says nothing about what it shows",
    "too-large": "it has more bytes than max_bytes",
}


def _judge(item: Item, max_bytes: int) -> str:
    if item.problem:
        return "unreadable"
    if not item.label:
        return "no-label"
    if len(item.data) > max_bytes:
        return "too-large"
    return "stored" if image_suffix(item.data[:16]) else unusable(item.data[:HEAD])[0]


def _download(repo: str, revision: str | None) -> Path:
    """Fetch the data files of a hub dataset into the hub's own cache; return their folder."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        raise UserError(
            f"{repo} is on the Hugging Face hub, which is used only if HF_HUB_OFFLINE=0 is "
            f"exported; export it, or download the dataset and set `path`."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repo, repo_type="dataset", revision=revision, allow_patterns=_PATTERNS
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(
            f"{repo} cannot be had from the Hugging Face hub ({detail}); check repo and revision."
        ) from None
    return Path(folder)
