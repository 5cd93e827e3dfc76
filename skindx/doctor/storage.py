"""Room on the disk and a cache that can be written."""

import os
import shutil
import tempfile
from pathlib import Path

from skindx.doctor.finding import Finding

MIN_FREE_GB = 5.0


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def disk(name: str, folder: Path) -> Finding:
    free_gb = shutil.disk_usage(_existing(folder)).free / 1e9
    advice = f"Free some space: {MIN_FREE_GB:.0f} GB is little for images and checkpoints."
    return Finding(name, free_gb >= MIN_FREE_GB, f"{free_gb:.1f} GB free, {folder}", advice)


def writable(folder: Path) -> Finding:
    advice = f"Make {folder} writable or point XDG_CACHE_HOME at a folder that is."
    try:
        with tempfile.TemporaryFile(dir=folder if folder.exists() else _existing(folder)):
            return Finding("cache", True, f"{folder} is writable")
    except OSError as error:
        return Finding("cache", False, f"{folder}: {error.strerror}", advice)


def _existing(path: Path) -> Path:
    """Return `path` or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
