"""`skindx doctor --upgrade`: what older versions wrote, in the formats of this one where it can be.

What is known by its hash stays as it is and is read as it is: runs name the hash of a manifest,
answers and `--expect` that of a bundle, and a checkpoint has its seal. Each format is renewed by a
function of the package that writes it; a file that is written anew is kept beside as FILE.old.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skindx import __version__
from skindx.core.errors import UserError
from skindx.core.machine import require_extra

State = Literal["converted", "current", "as it is", "failed"]
"""failed: it cannot be opened; its sentence says what to do."""

_MOST, _DEEPEST = 10_000, 6
"""Entries of folders that are looked at, and levels."""
_KNOWN = "a dataset, run, checkpoint, bundle, evaluation, scan, case book, monitor file or settings"


@dataclass(frozen=True)
class Renewed:
    """What became of one dataset, run, bundle, ..."""

    path: str
    what: str
    state: State
    words: str


def upgrade(where: str) -> Iterator[Renewed]:
    """Renew what stands at a path, or in the folders below it; `where` may be a case book's URL.

    One that cannot be opened does not stop the others. Raises UserError for a path with nothing
    that skindx wrote.
    """
    if "://" in where:
        yield _renewed(where, "case book", _case_book)
        return
    path, found = Path(where), False
    if not path.exists():
        raise UserError(f"{path} does not exist; give {_KNOWN}, or a folder that contains them.")
    for one, (what, renew) in _things(path):
        found = True
        yield _renewed(str(one), what, renew)
    if not found:
        raise UserError(f"{path} has nothing that skindx can upgrade; give {_KNOWN}.")


Renew = Callable[[str], tuple[State, str]]


def _renewed(path: str, what: str, renew: Renew) -> Renewed:
    try:
        return Renewed(path, what, *renew(path))
    except UserError as error:
        return Renewed(path, what, "failed", str(error))
    except OSError as error:
        why = f"{error.filename or path}: {error.strerror}; make it readable and writable."
        return Renewed(path, what, "failed", why)


def _things(path: Path) -> Iterator[tuple[Path, tuple[str, Renew]]]:
    left = [(path, 0)]
    for _ in range(_MOST):
        if not left:
            return
        one, depth = left.pop()
        kind = _kind(one)
        if kind:
            yield one, kind
        if one.is_dir() and depth < _DEEPEST and (kind is None or kind[0] == "run"):
            inside = sorted(one.iterdir(), reverse=True)
            left += [(entry, depth + 1) for entry in inside if not _passed_over(entry)]
    raise UserError(
        f"{path} has more than {_MOST:,} files and folders; give a smaller folder inside it."
    )


def _passed_over(entry: Path) -> bool:
    return entry.is_symlink() or entry.name.startswith(".") or entry.suffix == ".yaml"


def _kind(path: Path) -> tuple[str, Renew] | None:
    """Return what a path holds, and its function; None for what is no work of skindx."""
    if path.is_dir():
        return next((kind for mark, kind in _MARKS.items() if (path / mark).is_file()), None)
    if path.suffix in (".yaml", ".yml"):
        return "settings", _settings
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return None
    tables = _tables(path)
    if {"cases", "photos"} <= tables or "sealed_cases" in tables:
        return "case book", _case_book
    return ("monitor file", _monitor) if "monitor" in tables else None


def _tables(path: Path) -> set[str]:
    import sqlite3
    from contextlib import closing

    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {str(name) for (name,) in rows}
    except sqlite3.Error:
        return set()


def _dataset(where: str) -> tuple[State, str]:
    import dataclasses

    from skindx.core.atomic_files import OLD, read_parquet
    from skindx.core.text import counted
    from skindx.data.answer_log import DECISIONS, AnswerLog, take_in_older
    from skindx.data.layout import MANIFEST
    from skindx.data.manifest import Record, read_manifest

    path = Path(where)
    read_manifest(path)
    AnswerLog(path)
    if taken := take_in_older(path):
        files = ", ".join(f"{name}{OLD}" for name in taken)
        number = counted(sum(taken.values()), "answer")
        return "converted", f"{number} of older files are rows of {DECISIONS} now; kept: {files}."
    names = {field.name for field in dataclasses.fields(Record)}
    missing = sorted(names - set(read_parquet(path / MANIFEST).column_names))
    if not missing:
        return "current", "nothing to do."
    return "as it is", (
        f"read without the columns {', '.join(missing)}, which the next `skindx build` adds; runs "
        "name the hash of the manifest, so it is not written anew."
    )


def _bundle(where: str) -> tuple[State, str]:
    from skindx.models.bundle.bundle import open_bundle

    bundle, run = open_bundle(Path(where)), Path(where).parent
    if not (lacks := bundle.lacking()):
        return "current", "nothing to do."
    packs = f"`skindx train DATASET --config {run}/train.yaml --out {run}` packs it again"
    if not (run / "train.yaml").is_file():
        packs = "who trained it can pack it again: `skindx train` on its run"
    elif bundle.spec.skindx == __version__:  # a finished run leaves a bundle of its version
        packs = f"move it away, and {packs}"
    return "as it is", (
        f"of skindx {bundle.spec.skindx}, gives the answers that it gave, under its digest; lacks "
        f"{', '.join(lacks)}: {packs} with them, under a new digest; then evaluate it again."
    )


def _scan(where: str) -> tuple[State, str]:
    from skindx.scan.compare.registration import read_scan
    from skindx.scan.outputs.scan_files import renew_tables

    read_scan(Path(where))
    if kept := renew_tables(Path(where)):
        files = ", ".join(old.name for old in kept)
        return "converted", (
            f"its tables have today's columns, and no risk where the bundle knows no urgent class; "
            f"kept: {files}. Page and PDF are as they were: scan the photos again for new ones."
        )
    return "current", "nothing to do."


def _run(where: str) -> tuple[State, str]:
    from skindx.core.untrusted import read_plain_yaml
    from skindx.training.config.run import TrainSettings

    file = Path(where) / "train.yaml"
    TrainSettings.parse(read_plain_yaml(file), str(file), expand=False)
    goes_on = f"`skindx train DATASET --config {file} --out {where}` goes on with it."
    return "current", goes_on


def _checkpoint(where: str) -> tuple[State, str]:
    from skindx.training.checkpoint.keeper import DamagedCheckpointError, verify

    try:
        verify(Path(where))
    except DamagedCheckpointError as error:
        raise UserError(
            f"the checkpoint is damaged ({error}); delete it, and the training will continue from "
            "the previous checkpoint."
        ) from None
    return "current", "nothing to do."


def _evaluation(where: str) -> tuple[State, str]:
    from skindx.evaluation.answers import read_predictions

    if read_predictions(Path(where)).steps is not None:
        return "current", "nothing to do."
    return "as it is", (
        "read without what later versions measure, such as figures by age, sex and place; "
        "`skindx evaluate` on its dataset writes a new one."
    )


def _case_book(where: str) -> tuple[State, str]:
    require_extra("app", "sqlalchemy", "cryptography", purpose="a case book")
    from skindx.casebook.casebook_database import renew_database

    if done := renew_database(where):
        return "converted", f"{' '.join(done)} Its keys: --casebook-key, or beside it as FILE.keys."
    return "current", "nothing to do."


def _monitor(where: str) -> tuple[State, str]:
    from skindx.monitor.monitor_file import MonitorFile

    MonitorFile(Path(where)).read(rows=False)
    return "current", "nothing to do."


def _settings(where: str) -> tuple[State, str]:
    from skindx.core.untrusted import read_plain_yaml
    from skindx.data.recipe import BuildSettings
    from skindx.training.config.run import TrainSettings

    raw = read_plain_yaml(Path(where))
    kind = BuildSettings if "sources" in raw else TrainSettings
    kind.parse(raw, where, expand=False)
    return "current", "every key is one of this version."


_MARKS: dict[str, tuple[str, Renew]] = {
    "manifest.parquet": ("dataset", _dataset),
    "bundle.json": ("bundle", _bundle),
    "scan.json": ("scan", _scan),
    "train.yaml": ("run", _run),
    "index.json": ("checkpoint", _checkpoint),
    "predictions.parquet": ("evaluation", _evaluation),
}
"""The file by which a folder is known."""
