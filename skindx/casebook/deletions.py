"""What a deletion removes, and its trace: when, which login, what kind, nothing of the person.

Traces are sealed under a key of the key file, not under that of the case, which is destroyed. A
trace is written before that key goes and is listed once it is gone, so a crash in between leaves
the case without a trace, or the trace without the case.
"""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal

from sqlalchemy import Delete, LargeBinary, String, delete
from sqlalchemy.orm import Mapped, mapped_column

from skindx.casebook.key_file import Binding, Keys
from skindx.casebook.sealed_rows import CasebookTable, CaseRow, PhotoRow, ScanFileRow, ScanRow
from skindx.imaging.photo_date import day_of


@dataclass(frozen=True, slots=True)
class Deletion:
    """The trace of a deleted case or scan.

    It holds no pseudonym, no name of a place, no photo, no diagnosis and nothing else about the
    person, whose right the deletion is: a trace that led back to a patient would undo it.
    """

    kind: Literal["case", "scan"]
    when: datetime
    by: str = ""
    """Login that deleted it; "" where nobody logs in, and for the operator."""
    by_operator: bool = False
    """It was deleted on the command line."""
    photos: int = 0
    kept: date | None = None
    """The day on which it was kept; None: it could not be read any more."""


class DeletionRow(CasebookTable):
    """The trace of a deleted case or scan, encrypted; it has the id of what was deleted."""

    __tablename__ = "sealed_deletions"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    """Code of the login whose case it was, `key_file.owner_code`."""
    trace: Mapped[bytes] = mapped_column(LargeBinary)


def sealed_trace(keys: Keys, one: str, owner: str, trace: Deletion) -> dict[str, Any]:
    """Encrypt the trace of a deletion; `owner` is the code in the row of what is deleted."""
    held = {name: value for name, value in asdict(trace).items() if value is not None}
    held["when"] = trace.when.astimezone(UTC).isoformat()
    if trace.kept:
        held["kept"] = trace.kept.isoformat()
    sealed = Binding(keys.book, one, owner).seal(
        keys.of_deletions, json.dumps(held).encode(), "deletion"
    )
    return {"id": one, "owner": owner, "trace": sealed}


def read_trace(keys: Keys, one: str, owner: str, trace: bytes) -> Deletion:
    """Return the trace of a deletion. Raises UserError for a damaged one."""
    held = json.loads(Binding(keys.book, one, owner).unseal(keys.of_deletions, trace, "deletion"))
    held["when"] = datetime.fromisoformat(held["when"])
    return Deletion(**held | {"kept": day_of(held.get("kept", ""))})


def case_deletions(case: str) -> list[Delete]:
    photos = delete(PhotoRow).where(PhotoRow.case_id == case)
    return [photos, delete(CaseRow).where(CaseRow.id == case)]


def scan_deletions(scan: str) -> list[Delete]:
    files = delete(ScanFileRow).where(ScanFileRow.scan_id == scan)
    return [files, delete(ScanRow).where(ScanRow.id == scan)]
