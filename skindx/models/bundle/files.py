"""The files of a bundle on disk: exactly those that its index lists, each plain and as packed."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from skindx.core.atomic_files import finish_folder, is_unfinished
from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, open_plain, read_plain
from skindx.models.tensors import MOST_BYTES

INDEX = "bundle.json"

_LONGEST_INDEX = 32 * MEGABYTE
"""It names each image that was taken down after it was learned from."""
_MOST_FILES, _DEEPEST = 10_000, 6
_FEWEST_DIGITS = 16


def read_index(path: Path, expect: str | None = None) -> bytes:
    """Return the bytes of a bundle's index, whose SHA-256 is the bundle's digest.

    Raises UserError for a folder that is no bundle, and for one that does not begin with the
    digest that a user expects.
    """
    index = path / INDEX
    if not path.exists():
        raise UserError(f"bundle {path} does not exist; give the folder `skindx train` packed.")
    if not index.is_file():
        finish_folder(path, INDEX)  # a kill may have left the files half in their places
    if not index.is_file():
        raise UserError(f"{path} is no bundle (it has no {INDEX}); give RUN/bundle.")
    wanted = None if expect is None else _parsed(expect)
    content = read_plain(index, _LONGEST_INDEX)
    found = digest_of(content)
    if wanted is not None and not found.startswith(wanted):
        raise UserError(
            f"bundle {path} has the digest {found}, not {wanted}; it is another bundle, or was "
            "changed since: ask who gave you the digest for the bundle that it belongs to."
        )
    return content


def digest_of(index: bytes) -> str:
    """Return a bundle's digest, what `sha256sum bundle.json` prints: the index lists all hashes."""
    return hashlib.sha256(index).hexdigest()


def _parsed(expect: str) -> str:
    wanted = expect.strip().lower().removeprefix("sha256:")
    if not re.fullmatch("[0-9a-f]+", wanted) or not _FEWEST_DIGITS <= len(wanted) <= 64:
        raise UserError(
            f"--expect {expect[:80]!r} is no digest of a bundle: give its {_FEWEST_DIGITS} to 64 "
            "first hexadecimal digits, as `skindx train` prints them."
        )
    return wanted


def verify_files(path: Path, files: Mapping[str, str]) -> None:
    """Raise UserError unless the folder holds these files and nothing else, each with its SHA-256.

    Links, pipes and devices are no files of a bundle, whatever they lead to.
    """
    for name in files:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or pure.as_posix() != name or "\0" in name:
            raise UserError(f"bundle {path}: {name!r} points outside the bundle; do not use it.")
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    found = set()
    for number, (name, is_folder) in enumerate(_walk(path, path, 0)):
        if number > _MOST_FILES:
            raise UserError(f"bundle {path} holds more than {_MOST_FILES} files; do not use it.")
        if name not in (folders if is_folder else {INDEX, *files}):
            raise UserError(
                f"bundle {path}: {INDEX} does not list {name!r}; remove it, or pack the bundle "
                "again."
            )
        found.add(name)
    for name, expected in files.items():
        if name not in found:
            raise UserError(f"bundle {path}: {name} is missing; copy or pack the bundle again.")
        if _sha256(path / name) != expected:
            raise UserError(f"bundle {path}: {name} was altered; copy or pack the bundle again.")


def _walk(root: Path, folder: Path, depth: int) -> Iterator[tuple[str, bool]]:
    """Yield each name below a folder and whether it is a folder. Raises UserError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = Path(entry.path).relative_to(root).as_posix()
            if is_unfinished(name):  # of a bundle that is written within its folder: never read
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                raise UserError(
                    f"bundle {root}: {name!r} is a link, a pipe or a device, and a bundle holds "
                    "plain files; copy the bundle again with what its links lead to."
                )
            yield name, is_folder
            if is_folder and depth < _DEEPEST:
                yield from _walk(root, Path(entry.path), depth + 1)


def _sha256(file: Path) -> str:
    with open(open_plain(file, MOST_BYTES), "rb") as opened:  # noqa: PTH123 (a descriptor)
        return hashlib.file_digest(opened, "sha256").hexdigest()
