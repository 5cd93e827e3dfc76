"""Datasets as the Hugging Face hub keeps them: Parquet shards, or files with a metadata table.

Only data is read, with pyarrow; a dataset's own loading code is neither downloaded nor run.
Layouts: https://huggingface.co/docs/hub/datasets-image
"""

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from skindx.core.atomic_files import below
from skindx.core.errors import UserError
from skindx.core.secret_hosts import HUB
from skindx.data.ledger import LedgerRow
from skindx.data.sources.columns import Columns
from skindx.data.sources.image_source import LocalSource, SourcePreview
from skindx.data.tables.cells import cell, split_of
from skindx.data.tables.fields import AGAIN
from skindx.data.tables.reader import ONE_ROW, UNREADABLE, read_table
from skindx.imaging.image_formats import HEAD, image_suffix, unusable

_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_PATTERNS = ["*.parquet", "*.csv", "*.jsonl", "*.jpg", "*.jpeg", "*.png", "*.webp", "*.tif*"]


class HuggingFaceColumns(Columns):
    """Columns of a Parquet shard's images; a metadata table names files in `file_name`."""

    image: str = Field("image", min_length=1)


@dataclass(frozen=True, slots=True)
class HubItem:
    """One image of a dataset; `problem` says why its bytes could not be had."""

    url: str
    label: str
    data: bytes
    line: dict[str, Any]
    problem: str = ""


def from_shard(shard: Path, shown: str, columns: HuggingFaceColumns) -> Iterator[HubItem]:
    """Yield the images of a Parquet file, one at a time; class numbers become their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Buffered ahead, all images of a shard would be in memory.
        with pq.ParquetFile(shard, pre_buffer=False) as file:
            columns.check(shard, file.schema_arrow.names)
            names = _class_names(file.schema_arrow.metadata or {}, columns.label)
            number = 0
            for batch in file.iter_batches(batch_size=ONE_ROW, columns=list(columns.wanted)):
                for line in batch.to_pylist():
                    image = line.pop(columns.image)
                    data, name = _bytes_of(image)
                    yield HubItem(
                        f"{shown}/{number}/{name}".rstrip("/"),
                        _class_name(line[columns.label], names),
                        data or b"",
                        line,
                        "" if data else "the shard holds no bytes for it",
                    )
                    number += 1
    except UserError:
        raise
    except (*UNREADABLE, pa.ArrowException) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"{shard} cannot be read as Parquet ({detail}); {AGAIN}.") from None


def labels_of_shard(shard: Path, columns: HuggingFaceColumns) -> Iterator[str]:
    """Yield the labels of a Parquet file without reading its images; of a broken file none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(shard, pre_buffer=False) as file:
            names = _class_names(file.schema_arrow.metadata or {}, columns.label)
            for batch in file.iter_batches(columns=[columns.label]):
                yield from (_class_name(line[columns.label], names) for line in batch.to_pylist())
    except (*UNREADABLE, pa.ArrowException, KeyError):
        return  # what reads its images says what is wrong with it


def _bytes_of(image: object) -> tuple[bytes | None, str]:
    """Return bytes and file name of a cell: the hub's {bytes, path}, or bytes alone."""
    if isinstance(image, dict):
        data, path = image.get("bytes"), image.get("path")
        name = path.replace("\\", "/").rpartition("/")[2] if isinstance(path, str) else ""
        return (data if isinstance(data, bytes) else None), name
    return (image if isinstance(image, bytes) else None), ""


def _class_names(metadata: dict[bytes, bytes], column: str) -> list[str]:
    """Return the names of a ClassLabel column as `datasets` writes them into a file's schema."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _class_name(value: object, names: list[str]) -> str:
    if names and isinstance(value, int):
        return names[value] if 0 <= value < len(names) else ""
    return cell(value)


def from_table(
    table: Path, root: Path, fence: Path, columns: HuggingFaceColumns, max_bytes: int
) -> Iterator[HubItem]:
    """Yield the files that a metadata table names, relative to itself.

    Of a file no more is read than shows that it is longer than `max_bytes`.
    """
    named = columns.model_copy(update={"image": "file_name"})
    for number, line in enumerate(read_table(table, named), 1):
        name = cell(line.get("file_name"))
        path = table.parent / name
        problem, data = "", b""
        if not name or not _is_inside(path, fence):
            problem = "file_name leads out of the dataset" if name else "file_name is empty"
        else:
            try:
                if path.is_file():
                    with path.open("rb") as file:
                        data = file.read(max_bytes + 1)
                else:
                    problem = "there is no such file"
            except OSError as error:
                problem = f"the file cannot be read ({error.strerror})"
        # Of an absolute path nothing is left but the path itself.
        shown = (table.parent.relative_to(root) / (name or f"row-{number}")).as_posix()
        yield HubItem(shown, cell(line.get(columns.label)), data, line, problem)


def _is_inside(path: Path, fence: Path) -> bool:
    """Tell whether neither `..` nor a link leads out of the dataset."""
    try:
        return path.resolve().is_relative_to(fence)
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL, links in a circle
        return False


class HuggingFaceSource(LocalSource):
    """A dataset in a folder, or on the hub by its name and, better, its commit.

    The hub is asked only where HF_HUB_OFFLINE=0 says so. Class folders without any table are
    `kind: folder`. Splits that others made are read as one unless `splits` keeps them.
    """

    kind: Literal["huggingface"]
    path: Path | None = None
    repo: str = Field("", pattern=r"^([\w.-]+/[\w.-]+)?$")
    revision: str | None = None
    columns: HuggingFaceColumns = HuggingFaceColumns()
    splits: Literal["merged", "kept"] = Field("merged", exclude_if=lambda how: how == "merged")
    """Splits by the names of folders and shards: merged, or kept as they are."""
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    max_bytes: int = Field(20_000_000, ge=1, le=10**15)
    """Largest image."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if bool(self.path) == bool(self.repo):
            raise ValueError("set either `path` (a folder) or `repo` (owner/name)")
        return self

    @property
    def name(self) -> str:
        """The hub's name of it, or the folder's."""
        return f"huggingface:{self.repo or (self.path or Path()).resolve().name}"

    @property
    def folder(self) -> Path | None:
        """The folder, None for a dataset on the hub."""
        return self.path

    def hosts(self) -> Collection[str]:
        return [HUB] if self.repo else ()

    def gather(self, dataset: Path) -> list[LedgerRow]:
        """Copy the images into the store; return one row an image. Raises UserError."""
        root, fence = self._root()
        rows = [self._store(item, dataset) for item in self._items(root, fence)]
        if not rows:
            raise UserError(f"the tables in {root} have no rows; download the dataset again.")
        return rows

    def _root(self) -> tuple[Path, Path]:
        """Return the dataset's folder, and the folder that its links may not leave."""
        if self.path is None:
            folder = _download(self.repo, self.revision)
            return folder, folder.parents[1]  # the hub's cache links into its own blobs
        if not self.path.is_dir():
            raise UserError(
                f"{self.path} is not a folder; set `path` to the folder of the dataset."
            )
        return self.path, self.path.resolve()

    def _files(self, root: Path, fence: Path) -> tuple[list[Path], list[Path]]:
        """Return the Parquet shards, and the tables that name files. Raises UserError."""
        files = [path for path in below(root) if path.is_file()]
        tables = [path for path in files if path.name in _METADATA]
        shards = [path for path in files if path.suffix == ".parquet" and path not in tables]
        if not shards and not tables:
            raise UserError(
                f"{root} has neither Parquet files nor a metadata.csv or metadata.jsonl; if it has "
                "one folder a class, set `kind: folder` in the recipe."
            )
        for path in (*shards, *tables):
            if not path.resolve().is_relative_to(fence.resolve()):
                raise UserError(
                    f"{path} is a link to a file outside the dataset; replace the link by the file."
                )
        return shards, tables

    def preview(self) -> SourcePreview:
        """Return the labels of a dataset on this disk, none of one on the hub. Raises UserError."""
        if self.path is None:
            return SourcePreview(())
        root, fence = self._root()
        shards, tables = self._files(root, fence)
        labels = [label for shard in shards for label in labels_of_shard(shard, self.columns)]
        named = self.columns.model_copy(update={"image": "file_name"})
        for table in tables:
            labels += [cell(line.get(self.columns.label)) for line in read_table(table, named)]
        return SourcePreview(labels)

    def _items(self, root: Path, fence: Path) -> Iterator[HubItem]:
        shards, tables = self._files(root, fence)
        for shard in shards:
            yield from from_shard(shard, shard.relative_to(root).as_posix(), self.columns)
        for table in tables:
            yield from from_table(table, root, fence.resolve(), self.columns, self.max_bytes)

    def _store(self, item: HubItem, dataset: Path) -> LedgerRow:
        given = {name: getattr(self, name) for name in ("licence", "creator", "attribution")}
        status, detail = _judge(item, self.max_bytes)
        known = self.columns.known(item.line, **given)
        words = (word for part in item.url.split("/")[:-1] for word in (part, part.split("-")[0]))
        named = next(filter(None, map(split_of, words)), None) if self.splits == "kept" else None
        known |= {"split": named} if named else {}
        return self.stored(
            dataset, item.url, item.label, item.data, status=status, detail=detail, **known
        )


def _judge(item: HubItem, max_bytes: int) -> tuple[str, str]:
    if item.problem:
        return "unreadable", item.problem
    if not item.label:
        return "no-label", "the dataset says nothing about what it shows"
    if len(item.data) > max_bytes:
        return "too-large", "it has more bytes than max_bytes"
    return ("stored", "") if image_suffix(item.data[:16]) else unusable(item.data[:HEAD])


def _download(repo: str, revision: str | None) -> Path:
    """Fetch the data files of a hub dataset into the hub's own cache; return their folder."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "ON", "YES", "TRUE"}:
        raise UserError(
            f"HF_HUB_OFFLINE is not set to 0, so the Hugging Face dataset {repo} is not "
            "downloaded; run `export HF_HUB_OFFLINE=0`, or download the dataset yourself and set "
            "`path` in the recipe."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repo, repo_type="dataset", revision=revision, allow_patterns=_PATTERNS
        )
    except GatedRepoError:
        raise UserError(
            f"the Hugging Face dataset {repo} needs permission of its owners; request access on "
            "its page there, and run `export HF_TOKEN=TOKEN` with your token."
        ) from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(
            f"the Hugging Face dataset {repo} cannot be downloaded ({detail}); check `repo` and "
            "`revision` in the recipe, and your network."
        ) from None
    return Path(folder)
