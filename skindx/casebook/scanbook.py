"""The scans of a case book: keep, list, open, delete; every question names its owner."""

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.casebook.case import checked_name
from skindx.casebook.consent import SCAN_CONSENTS, Purpose, consent_text
from skindx.casebook.failure import database_errors
from skindx.casebook.key_file import KeyFile
from skindx.casebook.keys import new_key
from skindx.casebook.scan import FILES, FOLDERS, LIST, KeptScan
from skindx.casebook.sealing import damaged, owner_code
from skindx.core.errors import UserError
from skindx.core.untrusted import read_plain
from skindx.scan.outputs.summary import read_summary

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Delete, Engine

_LARGEST = 512 << 20
"""Bytes of one file of a scan."""

log = logging.getLogger(__name__)

_GONE = "this scan is not in the case book; it may have been deleted: open the list again."


@dataclass(frozen=True)
class ScanBook:
    """The scans in a case book's database, each under a key of its own as cases are."""

    engine: "Engine"
    keys: KeyFile

    def keep(
        self,
        owner: str,
        folder: Path,
        *,
        patient: str,
        view: str,
        consent: bool,
        compare: bool = False,
        listing: str = "",
    ) -> str:
        """Keep the scan in a folder that `skindx scan run` wrote; return its id.

        `consent` is to keeping alone, `compare` to a comparison with other scans of the view.
        `listing` is the part of the page that shows it. Raises UserError without consent or name,
        and for a folder that holds no scan.
        """
        from sqlalchemy import insert
        from sqlalchemy.orm import Session

        from skindx.casebook.scan_rows import sealed_scan
        from skindx.casebook.scan_tables import ScanFileRow, ScanRow

        if not consent:
            raise UserError("nothing is kept without consent; tick the box, or leave it.")
        agreed: tuple[Purpose, ...] = ("keep", "compare") if compare else ("keep",)
        summary, files = read_summary(folder), _read_files(folder)
        if listing:
            files[LIST] = listing.encode()
        scan = KeptScan(
            id=uuid.uuid4().hex,
            owner=owner,
            patient=checked_name(patient, "patient"),
            view=checked_name(view, "view"),
            taken=summary.made_at,
            lesions=summary.lesions,
            photos=len(summary.photos),
            consent=consent_text(SCAN_CONSENTS, agreed),
            consented=datetime.now(UTC),
        )
        with self.keys.locked():
            self.keys.add({scan.id: new_key()})
            try:
                row, contents = sealed_scan(self.keys.read(), scan, files)
                with (
                    database_errors("written"),
                    Session(self.engine) as session,
                    session.begin(),
                ):
                    session.execute(insert(ScanRow), [row])
                    session.execute(insert(ScanFileRow), contents)
            except BaseException:
                with suppress(UserError):  # a key without a scan opens nothing
                    self.keys.destroy(scan.id)
                raise
        return scan.id

    def scans(self, owner: str | None) -> list[KeptScan]:
        """Return the owner's scans, oldest first; None: those of all owners (for the operator)."""
        return sorted(self._read(owner), key=lambda scan: (scan.taken, scan.id))

    def ids(self) -> set[str]:
        """Return the ids of the scans of all owners, also of those that cannot be read."""
        from sqlalchemy import select
        from sqlalchemy.orm import Session

        from skindx.casebook.scan_tables import ScanRow

        with database_errors("read"), Session(self.engine) as session:
            return set(session.scalars(select(ScanRow.id)))

    def scan(self, owner: str | None, scan: str) -> KeptScan:
        """Return one scan. Raises UserError where the owner has none of this id."""
        from skindx.casebook.scan_tables import ScanRow

        kept = self._read(owner, ScanRow.id == scan)
        if not kept:
            raise UserError(_GONE)
        return kept[0]

    def files(self, owner: str | None, scan: str, *wanted: str) -> Mapping[str, bytes]:
        """Return a scan's files by their names, or of them the `wanted` that are there.

        Raises UserError where the owner has none of this id, and for a damaged one.
        """
        from sqlalchemy import select
        from sqlalchemy.orm import Session

        from skindx.casebook.scan_rows import read_file, read_names
        from skindx.casebook.scan_tables import ScanFileRow, ScanRow

        kept, keys = self.scan(owner, scan), self.keys.read()
        with database_errors("read"), Session(self.engine) as session:
            sealed = session.scalar(select(ScanRow.names).where(ScanRow.id == scan))
            if sealed is None or scan not in keys.cases:  # deleted meanwhile
                raise UserError(_GONE)
            names = read_names(keys, kept, sealed)
            places = [n for n, name in enumerate(names) if not wanted or name in wanted]
            rows = session.execute(
                select(ScanFileRow.position, ScanFileRow.content).where(
                    ScanFileRow.scan_id == scan, ScanFileRow.position.in_(places)
                )
            ).all()
        if sorted(place for place, _ in rows) != places:
            raise damaged(f"case {scan}")
        return {names[place]: read_file(keys, kept, place, content) for place, content in rows}

    def delete(self, owner: str | None, scan: str) -> None:
        """Delete a scan: destroy its key, then its rows; None: of any owner.

        Raises UserError where there is none of this id.
        """
        from sqlalchemy.orm import Session

        with self.keys.locked():
            # The owner's is opened, so that a copied code destroys no other owner's key.
            if owner is not None:
                self.scan(owner, scan)
            elif scan not in self.ids():
                raise UserError(_GONE)
            self.keys.destroy(scan)
            try:
                with (
                    database_errors("written"),
                    Session(self.engine) as session,
                    session.begin(),
                ):
                    for question in deletions(scan):
                        session.execute(question)
            except UserError:
                # It cannot be read any more; its rows are deleted when the case book opens next.
                log.warning("the key of a deleted scan is destroyed, its rows are still there")

    def _read(self, owner: str | None, *conditions: "ColumnElement[bool]") -> list[KeptScan]:
        from sqlalchemy import select
        from sqlalchemy.orm import Session

        from skindx.casebook.scan_rows import read_card
        from skindx.casebook.scan_tables import ScanRow

        keys = self.keys.read()
        question = select(ScanRow.id, ScanRow.owner, ScanRow.card).where(*conditions)
        if owner is not None:
            question = question.where(ScanRow.owner == owner_code(keys.owners, owner))
        with database_errors("read"), Session(self.engine) as session:
            rows = session.execute(question).all()
        keys = self.keys.read()
        return [
            read_card(keys, scan, code, card) for scan, code, card in rows if scan in keys.cases
        ]


def deletions(scan: str) -> "list[Delete]":
    """Return what deletes the rows of a scan."""
    from sqlalchemy import delete

    from skindx.casebook.scan_tables import ScanFileRow, ScanRow

    files = delete(ScanFileRow).where(ScanFileRow.scan_id == scan)
    return [files, delete(ScanRow).where(ScanRow.id == scan)]


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the files that are kept of a scan's folder. Raises UserError."""
    if links := [name for name in FOLDERS if (folder / name).is_symlink()]:
        raise UserError(
            f"{folder / links[0]} is a link, and a scan has none; scan the photos again."
        )
    inside = [path for name in FOLDERS for path in sorted((folder / name).glob("*.jpg"))]
    try:
        return {
            path.relative_to(folder).as_posix(): read_plain(path, _LARGEST)
            for path in (*(folder / name for name in FILES), *inside)
        }
    except UserError as error:
        raise UserError(f"the scan in {folder} is not whole: {error}") from None
