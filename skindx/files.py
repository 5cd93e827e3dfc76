"""Outputs that are whole or absent, written under a temporary name, by one process at a time."""

import csv
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skindx.errors import UserError


@contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it goes.

    The file gets those bits of `mode` that the user's umask leaves, as any other file does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it takes the place of `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            # A folder cannot be replaced in one step: move the old one away first.
            old = temporary.with_name(temporary.name + ".old")
            path.replace(old)
            temporary.replace(path)
            shutil.rmtree(old)
        else:
            temporary.replace(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _name(error, path)
        raise


def _name(error: BaseException, path: Path) -> None:
    """Let an error of the system name the output, where a write said only that it failed."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}")


@contextmanager
def only_writer(path: Path, work: str = "process", wait_s: float = math.inf) -> Iterator[int]:
    """Hold a file or folder against all others who do so; a kill sets it free.

    Yields the descriptor that bears the lock: a child that inherits it holds on until it ends too.
    Raises UserError, which calls the other one a `work`, if it still has it after `wait_s` seconds.
    """
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(
                        f"another {work} is at work in {path}; wait for it, or end it."
                    ) from None
                time.sleep(0.05)
        yield descriptor
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as CSV atomically, the names of its columns first."""
    with (
        atomic_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the order given, with a final newline."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> Any:
    """Return the Arrow table of a Parquet file, of these columns that it has, or of all.

    pyarrow's own `read_table` takes folders and filters too, and imports pandas for them. Raises
    what pyarrow raises.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read(columns=columns)
