"""The files below a folder, and what each of them is; links are followed only where asked."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skindx.core.errors import UserError
from skindx.imaging.formats import HEAD, image_suffix, unusable

MAX_BYTES = 200_000_000
"""No photograph is larger; what is would only fill memory and disk."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of a folder; `status` is "stored" for what looks like an image, else why not."""

    path: Path
    label: str
    status: str
    detail: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class Walk:
    """Goes through folders; links lead out of `bounds` only where there are none."""

    bounds: Path | None

    def enters(self, entry: Path) -> bool:
        """Tell whether an entry is a folder to go through."""
        return entry.is_dir() and (self.bounds is None or not entry.is_symlink())

    def files(self, folder: Path, label: str, above: tuple[Path, ...] = ()) -> Iterator[FoundFile]:
        """Yield all files below a folder; `above` are the folders that lead to it."""
        real = _target(folder)
        if real in above:
            yield FoundFile(folder, label, "link-refused", "the link leads back to a folder above")
            return
        for entry in visible(folder):
            if self.enters(entry):
                yield from self.files(entry, label, (*above, real))
            else:
                yield look_at(entry, label, self.bounds)


def look_at(path: Path, label: str, bounds: Path | None) -> FoundFile:
    """Say what a file is; links that lead out of `bounds` are refused, if there are any."""
    try:
        outside = bounds is not None and not _target(path).is_relative_to(bounds)
        if path.is_symlink() and (path.is_dir() or outside):
            detail = "the link leads to a folder or out of the source"
            return FoundFile(path, label, "link-refused", detail)
        if path.exists() and not path.is_file():
            return FoundFile(path, label, "unreadable", "it is neither a file nor a folder")
        with path.open("rb") as file:
            head = file.read(HEAD)
        suffix = image_suffix(head)
        size_bytes = path.stat().st_size
    except OSError as error:
        return FoundFile(path, label, "unreadable", unreadable(error))
    if suffix is None:
        return FoundFile(path, label, *unusable(head))
    if size_bytes > MAX_BYTES:
        return FoundFile(path, label, "too-large", f"it has more than {MAX_BYTES} bytes")
    return FoundFile(path, label, "stored", suffix=suffix)


def _target(link: Path) -> Path:
    # Unlike Path.resolve, realpath answers for a link that leads to itself.
    return Path(os.path.realpath(link))


def visible(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder} cannot be listed ({error.strerror}); check its permissions."
        ) from None
    return [entry for entry in entries if not entry.name.startswith((".", "__MACOSX"))]


def unreadable(error: OSError) -> str:
    return f"the file cannot be read ({error.strerror})"
