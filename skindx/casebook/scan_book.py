"""The scans of a case book: keep, list, open, compare, delete; every query names its owner."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, insert, select

from skindx.casebook.case_names import checked_name, one_spelling, require_pseudonym, spelled
from skindx.casebook.casebook_database import SealedBook
from skindx.casebook.deletions import Deletion, scan_deletions
from skindx.casebook.kept_case import (
    FILES,
    FOLDERS,
    LIST,
    SCAN_CONSENTS,
    KeptScan,
    Purpose,
    consent_text,
    purposes_of,
)
from skindx.casebook.key_file import Binding, Keys, damaged, overwrite, owner_code
from skindx.casebook.sealed_rows import (
    ScanFileRow,
    ScanRow,
    consents_text,
    moment_text,
    opened_card,
)
from skindx.core.atomic_files import below, memory_folder, private_folder
from skindx.core.errors import UserError
from skindx.core.private_files import make_private, new_private
from skindx.core.untrusted import read_plain
from skindx.scan.compare.scan_comparison import ScanComparison, compare
from skindx.scan.outputs.scan_result import read_summary
from skindx.texts.catalogue import joined, text

_LARGEST = 512 << 20
"""Bytes of one file of a scan."""


@dataclass(frozen=True)
class ScanBook(SealedBook):
    """The scans in a case book's database, each under a key of its own as cases are."""

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
        no_person: bool = False,
    ) -> str:
        """Keep the scan in a folder that `skindx scan run` wrote; return its id.

        `consent` is to keeping alone, `compare` to a comparison with other scans of the view.
        `listing` is the part of the page that shows it. Raises UserError without consent or name,
        for names that may say who the patient is unless `no_person` says that they do not, and for
        a folder that holds no scan.
        """
        if not consent:
            raise UserError(text("scan_consent"))
        patient, view = checked_name(patient, "patient"), checked_name(view, "view")
        try:
            earlier = self.scans(owner)
        except UserError:  # a damaged row of another scan keeps no new one out
            earlier = []
        if not no_person:
            require_pseudonym(patient, view, "view", {scan.patient for scan in earlier})
        patient = spelled(patient, (scan.patient for scan in earlier))
        view = spelled(view, (scan.view for scan in earlier if scan.patient == patient))
        agreed: tuple[Purpose, ...] = ("keep", "compare") if compare else ("keep",)
        summary, files = read_summary(folder), _read_files(folder)
        if listing:
            files[LIST] = listing.encode()
        scan = KeptScan(
            id=uuid.uuid4().hex,
            owner=owner,
            patient=patient,
            view=view,
            taken=summary.made_at,
            lesions=summary.lesions,
            photos=len(summary.photos),
            consent=consent_text(SCAN_CONSENTS, agreed),
            consented=datetime.now(UTC),
        )
        with self.keys.new_case(scan.id) as keys:
            row, contents = _sealed_scan(keys, scan, files)
            with self.session("written") as session:
                session.execute(insert(ScanRow), [row])
                session.execute(insert(ScanFileRow), contents)
        return scan.id

    def scans(self, owner: str | None) -> list[KeptScan]:
        """Return the owner's scans, oldest first; None: those of all owners (for the operator)."""
        return one_spelling(sorted(self._read(owner), key=lambda scan: (scan.taken, scan.id)))

    def ids(self) -> set[str]:
        """Return the ids of the scans of all owners, also of those that cannot be read."""
        with self.session("read") as session:
            return set(session.scalars(select(ScanRow.id)))

    def scan(self, owner: str | None, scan: str) -> KeptScan:
        """Return one scan. Raises UserError where the owner has none of this id."""
        kept = self._read(owner, ScanRow.id == scan)
        if not kept:
            raise UserError(text("scan_gone"))
        return kept[0]

    def files(self, owner: str | None, scan: str, *wanted: str) -> Mapping[str, bytes]:
        """Return a scan's files by their names, or of them the `wanted` that are there.

        Raises UserError where the owner has none of this id, and for a damaged one.
        """
        kept, keys = self.scan(owner, scan), self.keys.read()
        with self.session("read") as session:
            sealed = session.scalar(select(ScanRow.names).where(ScanRow.id == scan))
            if sealed is None or scan not in keys.cases:  # deleted meanwhile
                raise UserError(text("scan_gone"))
            names = _read_names(keys, kept, sealed)
            places = [n for n, name in enumerate(names) if not wanted or name in wanted]
            rows = session.execute(
                select(ScanFileRow.position, ScanFileRow.content).where(
                    ScanFileRow.scan_id == scan, ScanFileRow.position.in_(places)
                )
            ).all()
        if sorted(place for place, _ in rows) != places:
            raise damaged(f"case {scan}")
        return {names[place]: _read_file(keys, kept, place, content) for place, content in rows}

    def delete(self, owner: str | None, scan: str) -> None:
        """Delete a scan: destroy its key, then its rows; None: of any owner.

        Raises UserError where there is none of this id.
        """
        with self.keys.locked():
            trace = Deletion("scan", datetime.now(UTC), owner or "", owner is None)
            try:
                # The owner's is opened, so that a copied code destroys no other owner's key.
                kept = self.scan(owner, scan)
                day = kept.consented.astimezone().date()
                trace = replace(trace, photos=kept.photos, kept=day)
            except UserError:
                if owner is not None:
                    raise
            with self.session("read") as session:
                code = session.scalar(select(ScanRow.owner).where(ScanRow.id == scan))
            if code is None:
                raise UserError(text("scan_gone"))
            self.destroy(scan, scan_deletions(scan), code, trace)

    def _read(self, owner: str | None, *conditions: ColumnElement[bool]) -> list[KeptScan]:
        keys = self.keys.read()
        query = select(ScanRow.id, ScanRow.owner, ScanRow.card).where(*conditions)
        if owner is not None:
            query = query.where(ScanRow.owner == owner_code(keys.owners, owner))
        with self.session("read") as session:
            rows = session.execute(query).all()
        keys = self.keys.read()
        return [
            _read_scan(keys, scan, code, card) for scan, code, card in rows if scan in keys.cases
        ]


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the files that are kept of a scan's folder. Raises UserError."""
    if links := [name for name in FOLDERS if (folder / name).is_symlink()]:
        raise UserError(
            f"{folder / links[0]} is a link, but a scan must have no links; scan the photos again."
        )
    inside = [path for name in FOLDERS for path in below(folder / name, "*.jpg")]
    try:
        return {
            path.relative_to(folder).as_posix(): read_plain(path, _LARGEST)
            for path in (*(folder / name for name in FILES), *inside)
        }
    except UserError as error:
        raise UserError(f"the scan in {folder} is not complete: {error}") from None


_ROOM_BYTES = 512 << 20


@contextmanager
def compared(
    book: ScanBook, owner: str | None, first: str, second: str
) -> Iterator[ScanComparison]:
    """Compare two scans of a patient's view, the older one before; the block may read its files.

    The files are in plain text only until the block ends. Raises UserError for the same scan twice,
    scans of different patients or views, and photos that cannot be laid on each other.
    """
    scans = sorted((book.scan(owner, scan) for scan in {first, second}), key=lambda x: x.taken)
    _check(scans)
    with _private_folder() as folder:
        for number, scan in enumerate(scans):
            _write(folder / str(number), book.files(scan.owner, scan.id))
        try:
            yield compare(folder / "0", folder / "1")
        except UserError as error:
            message = str(error)
            for number, scan in enumerate(scans):
                shown = text("compared_scan", when=scan.taken)
                message = message.replace(str(folder / str(number)), shown)
            raise UserError(message) from None


def _check(scans: list[KeptScan]) -> None:
    if len(scans) < 2:
        raise UserError(text("scan_twice"))
    if len({(scan.owner, scan.patient, scan.view) for scan in scans}) > 1:
        raise UserError(text("scan_other_view"))
    without = [scan for scan in scans if "compare" not in purposes_of(scan.consent)]
    if without:
        raise UserError(
            joined(text("scan_uncompared", when=without[0].taken), text("scan_uncompared_do"))
        )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise UserError(
                "a saved scan is damaged, because it names a file outside its folder; restore "
                "the case book from a backup."
            )
        make_private(path.parent)
        with new_private(path) as file:
            file.write(content)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield a folder of this user alone, in memory where there is room; its bytes are zeroed."""
    with private_folder("skindx-compare-", memory_folder(_ROOM_BYTES)) as folder:
        try:
            yield folder
        finally:
            for path in folder.rglob("*"):
                if path.is_file():
                    overwrite(path)


def _sealed_scan(
    keys: Keys, scan: KeptScan, files: Mapping[str, bytes]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Encrypt a scan whose key is in `keys`; return its columns and those of its files."""
    key, owner = keys.cases[scan.id], owner_code(keys.owners, scan.owner)
    card = asdict(scan) | {
        "taken": moment_text(scan.taken),
        "consented": moment_text(scan.consented),
    }
    del card["id"]
    binding = Binding(keys.book, scan.id, owner)
    bound = _bound(keys, scan)
    row = {
        "id": scan.id,
        "owner": owner,
        "card": binding.seal(key, json.dumps(card).encode(), "scan card"),
        "names": bound.seal(key, json.dumps(list(files)).encode(), "scan names"),
    }
    contents = [
        {"scan_id": scan.id, "position": place, "content": bound.seal(key, content, _file(place))}
        for place, content in enumerate(files.values())
    ]
    return row, contents


def _read_scan(keys: Keys, scan: str, owner: str, card: bytes) -> KeptScan:
    """Return a scan without its files; `owner` is the code in its row.

    Raises UserError for a damaged row, and for one whose owner was changed.
    """
    return _kept_scan(scan, opened_card(keys, Binding(keys.book, scan, owner), card, "scan card"))


def _kept_scan(scan: str, held: dict[str, Any]) -> KeptScan:
    """Return a scan from what its decrypted card holds."""
    times = {name: datetime.fromisoformat(held[name]) for name in ("taken", "consented")}
    kept = KeptScan(id=scan, **(held | times))
    return replace(kept, lesions=int(kept.lesions), photos=int(kept.photos))


def _read_names(keys: Keys, scan: KeptScan, names: bytes) -> list[str]:
    """Return the names of a scan's files, in their order. Raises UserError for a damaged row."""
    held = _bound(keys, scan).unseal(keys.cases[scan.id], names, "scan names")
    return [str(name) for name in json.loads(held)]


def _read_file(keys: Keys, scan: KeptScan, position: int, content: bytes) -> bytes:
    """Return a file's bytes. Raises UserError for a damaged one."""
    return _bound(keys, scan).unseal(keys.cases[scan.id], content, _file(position))


def _bound(keys: Keys, scan: KeptScan) -> Binding:
    """Return what the parts of a scan are bound to that are read after its card."""
    owner = owner_code(keys.owners, scan.owner)
    return Binding(keys.book, scan.id, owner, consents=consents_text(scan.consent, scan.consented))


def _file(position: int) -> str:
    return f"scan file {position}"
