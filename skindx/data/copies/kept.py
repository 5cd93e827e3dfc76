"""Stored results of searches for copies, of the images that a dataset still has."""

import shutil
from collections.abc import Collection
from pathlib import Path

from skindx.data.copies.shards import Shard, folder_of, sha256_of, shard_files, write_shard
from skindx.data.copies.verified import keep_pairs
from skindx.data.store import stored_files


def keep_stored(dataset: Path) -> None:
    """Delete what is known of images whose bytes the store no longer has. See `keep_only`."""
    keep_only(dataset, {sha256_of(file.name) for file in stored_files(dataset)})


def keep_only(dataset: Path, sha256s: Collection[str]) -> None:
    """Delete the descriptions and the evidence of all other images, and those of other versions.

    For who holds `only_writer`: after a removal nothing may be left that shows a removed image.
    """
    folder, wanted = folder_of(dataset.absolute()), set(sha256s)
    for other in folder.parent.glob("*"):
        if other != folder and other.is_dir():
            shutil.rmtree(other)
    keep_pairs(dataset, wanted)
    for file in shard_files(folder):
        shard = Shard(file)
        kept = [at for at, sha256 in enumerate(shard.sha256s) if sha256 in wanted]
        if len(kept) == len(shard.sha256s):
            continue
        if kept:
            rows = shard.rows()
            write_shard(folder, [shard.sha256s[at] for at in kept], [rows[at] for at in kept])
        file.unlink()
