"""A dataset folder: the names of its files, its store of images, and changes of several files.

The store holds original bytes, named by their own SHA-256. A dataset may come from anyone, so a
link below the store is followed only where it leads to another place of the same store: else a
verb would read, publish or delete whatever file it names. The store itself may be a link, for
instance to a larger disk; then it gives files that are named by a SHA-256 and no others.

Several files change together, all or none, whenever a kill comes (`transaction`): the new files
are written into a folder of their own; renaming it is the one step that makes them count. What is
left, moving each to its place, is finished by the next reader of the folder.
"""

import errno
import hashlib
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from skindx.core.atomic_files import atomic_file, is_clutter
from skindx.core.errors import UserError

MANIFEST = "manifest.parquet"
ISSUES = "issues.parquet"
TAXONOMY = "taxonomy.yaml"
RECIPE = "recipe.yaml"
SUMMARY = "summary.json"
REPORT = "report.html"
"""What a person reads of the dataset; every build writes it."""
LEDGER = "ledger.jsonl"
COPIES = "copies.parquet"
"""Pairs of copies; absent where the build looked for none."""
STORE = "store"
"""The private working store: original bytes, named by their own SHA-256."""
CACHE = "cache"
"""Where loaders keep decoded images; it may be deleted while no training runs."""
BLOCKLIST = "blocklist.jsonl"
PAGES = "pages"
"""Pages that crawls keep; it may be deleted at any time."""
LOG = "fetch.log"
"""What the last crawl wrote of itself."""
DIFF = "diff.json"
"""What `--diff` of `skindx build` wrote in versions before 1.0."""
LABEL_REVIEW = "label_review.html"
GALLERY = "gallery"
"""Pages with thumbnails that versions before 1.0 wrote; a take-down deletes them."""


STAGING = ".building"
READY = ".ready"


@contextmanager
def transaction(folder: Path) -> Iterator[Path]:
    """Yield an empty folder; when the block ends its files take their places in `folder` at once.

    When the block fails `folder` stays as it was. Only for who holds `only_writer`.
    """
    recover(folder)
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.replace(folder / READY)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    recover(folder)


def recover(folder: Path) -> None:
    """Finish a change of `folder` that a kill cut short; usually there is none.

    Any number of processes may do so at once. Raises UserError where this one may not write.
    """
    ready = folder / READY
    if not ready.is_dir():
        return
    try:
        with suppress(FileNotFoundError):  # another process was quicker
            for path in sorted(ready.iterdir()):
                with suppress(FileNotFoundError):
                    path.replace(folder / path.name)
            ready.rmdir()
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:  # the next change has come meanwhile
            return
        raise UserError(
            f"an earlier command on {folder} was interrupted, and its change cannot be completed "
            f"({error.strerror}); run any skindx command on the folder once as a user who may "
            "write in it."
        ) from None


_BY_HASH = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}(\.\w+)?")


def store_bytes(dataset: Path, data: bytes, suffix: str) -> tuple[str, str]:
    """Store bytes in a dataset folder; return (sha256, path relative to the folder).

    The same bytes are stored once; a killed write leaves nothing under the final name.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    relative = Path(STORE) / sha256[:2] / f"{sha256}{suffix}"
    file = stored_file(dataset, relative.as_posix())
    if not file.exists():
        with atomic_file(file) as temporary:
            temporary.write_bytes(data)
    return sha256, relative.as_posix()


def is_inside(path: str) -> bool:
    """Return whether a relative path stays in its folder as far as its words go."""
    pure = PurePosixPath(path)
    return bool(path) and "\0" not in path and not pure.is_absolute() and ".." not in pure.parts


def stored_file(dataset: Path, path: str) -> Path:
    """Return the file at a path relative to a dataset folder; it need not exist.

    Raises UserError for a link that leads out of the store, and for what is no plain file.
    """
    first, _, rest = path.partition("/")
    root = dataset / first if rest and first == STORE else dataset
    file = at = dataset / path
    while at != root:
        if at.is_symlink() and not at.resolve().is_relative_to(root.resolve()):
            raise _no_file_of(at, dataset, "is a link that leads out of the dataset")
        at = at.parent
    if root != dataset and root.is_symlink() and not _BY_HASH.fullmatch(rest):
        raise _no_file_of(file, dataset, "lies in another folder and is not named by its SHA-256")
    if not _plain_or_absent(file):
        raise _no_file_of(file, dataset, "is a folder, a pipe or a device")
    return file


def _plain_or_absent(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return True


def _no_file_of(file: Path, dataset: Path, why: str) -> UserError:
    return UserError(
        f"{file!r} is not a usable file of the dataset {dataset}: it {why}. Put a copy of the "
        "image at that path, or do not use this dataset."
    )


def stored_files(dataset: Path) -> Iterator[Path]:
    """Yield all files of the store. Raises UserError as `stored_file` does."""
    for file in (dataset / STORE).glob("*/*"):
        if is_clutter(file.relative_to(dataset).as_posix()):
            continue
        yield stored_file(dataset, file.relative_to(dataset).as_posix())


def store_files(dataset: Path, sha256: str) -> list[Path]:
    """Return the files of one image in a dataset's store: one, or none. Raises UserError."""
    files = (dataset / STORE / sha256[:2]).glob(f"{sha256}.*")
    return [stored_file(dataset, file.relative_to(dataset).as_posix()) for file in files]


def sweep_store(out: Path, named: Collection[str]) -> int:
    """Delete the store's files whose path is not `named`, also what killed writes left there.

    Returns how many; only for who holds `only_writer`, once the new manifest is in place. A link
    to a folder goes, and what it leads to stays.
    """
    swept = 0
    for shard in (out / STORE).glob("*"):
        if shard.is_symlink():
            shard.unlink()
            swept += 1
            continue
        for file in shard.glob("*"):
            path = file.relative_to(out).as_posix()
            if path not in named and not is_clutter(path):
                file.unlink()
                swept += 1
    return swept
