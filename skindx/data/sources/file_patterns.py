"""Where the file of a cell is: folders, patterns with {} and with *, archives."""

import re
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.tables.archives import ENDINGS, archive_above

_HOLE = re.compile(r"\{(?::0(\d))?\}")


def filled(pattern: str, file: str) -> str:
    """Return a pattern with a cell in its place; {:04} fills a number with zeros."""
    return _HOLE.sub(lambda hole: file.zfill(int(hole[1] or 0)), pattern)


def expanded(root: Path, pattern: str) -> list[str]:
    """Return the patterns of files that a folder, or a pattern with *, stands for."""
    if not _HOLE.search(pattern):
        return [f"{folder}/{{}}{end}" for folder in _folders(root, pattern) for end in ENDINGS]
    parts = pattern.split("/")
    at = next(place for place, part in enumerate(parts) if _HOLE.search(part))
    if any("*" in part for part in parts[at:]):
        raise UserError(
            f"`files: {pattern!r}` has a * after {{column}}; write the name of the folder "
            "instead of the *."
        )
    rest = "/".join(parts[at:])
    if not at:
        return [rest]
    return [f"{folder}/{rest}" for folder in _folders(root, "/".join(parts[:at]))]


def _folders(root: Path, pattern: str) -> list[str]:
    """Return the folders below `root` of a name with *, sorted; any other name as it is."""
    pattern = pattern.rstrip("/")
    if "*" not in pattern or pattern.startswith("/"):
        return [pattern]
    found = [
        path for path in sorted(root.glob(pattern)) if path.is_dir() or archive_above(path) == path
    ]
    if not found:
        raise UserError(
            f"the folder {pattern!r} is not in the folder of the table; change `files` in the "
            "recipe."
        )
    return [path.relative_to(root).as_posix() for path in found]
