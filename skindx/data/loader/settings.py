"""How training reads its pictures: threads, look-ahead, cache."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from skindx.config import Settings


class NoCache(Settings):
    """Read and decode the files anew in each epoch."""

    kind: Literal["none"] = "none"


class MemoryCache(Settings):
    """Keep the encoded bytes in memory: files are read in the first epoch only."""

    kind: Literal["memory"] = "memory"


class DiskCache(Settings):
    """Keep decoded, shrunk pictures in a memory-mapped file that all ranks of a node share."""

    kind: Literal["disk"] = "disk"
    folder: Path | None = None
    """Where the file lies, best a local SSD; none: `cache` in the dataset folder."""
    margin: float = Field(1.25, ge=1, le=4)
    """Pictures are kept this much larger than evaluation's side, so that crops stay sharp."""


Cache = Annotated[NoCache | MemoryCache | DiskCache, Field(discriminator="kind")]


class LoaderSettings(Settings):
    """Pictures come ready as uint8; the model normalises them on its device."""

    threads: int | Literal["auto"] = "auto"
    """Threads of each rank; auto: the cores it may use, shared among the ranks of its node."""
    prefetch: int = Field(4, ge=1, le=64)
    """Batches that are ready or in work before training asks for them."""
    cache: Cache = MemoryCache()
    sharded: bool | Literal["auto"] = "auto"
    """Every rank keeps and sees the same share of the pictures in each epoch.

    auto: only when a node's memory cannot hold what its ranks would keep otherwise.
    """
