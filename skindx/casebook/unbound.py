"""Cases and scans that were sealed before their owner, consents and version were bound to them.

They are sealed again when the case book is opened, one transaction a case. A row whose code of the
owner is not that of the owner in its card was changed, and stays as it is: it is never read.
"""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from skindx.casebook.finding import Finding
from skindx.casebook.keys import Keys
from skindx.casebook.rows import Card, Record, read_card, sealed_case
from skindx.casebook.scan_rows import kept_scan, sealed_scan
from skindx.casebook.scan_rows import read_card as read_scan
from skindx.casebook.scan_tables import ScanFileRow, ScanRow
from skindx.casebook.sealing import damaged, owner_code, unseal_unbound
from skindx.casebook.tables import CaseRow, PhotoRow
from skindx.core.errors import UserError

if TYPE_CHECKING:
    from sqlalchemy import Engine

log = logging.getLogger(__name__)


def bind(engine: "Engine", keys: Keys) -> None:
    """Seal again what is not bound yet, under the lock of the key file."""
    cases = (CaseRow.id, CaseRow.owner, CaseRow.version, CaseRow.card)
    scans = (ScanRow.id, ScanRow.owner, ScanRow.card)
    with Session(engine) as session:
        rows = session.execute(select(*cases)).all()
        unbound = [
            row.id for row in rows if row.id in keys.cases and not _opens(read_card, keys, row)
        ]
        rows_of_scans = session.execute(select(*scans)).all()
        unbound_scans = [
            row.id
            for row in rows_of_scans
            if row.id in keys.cases and not _opens(read_scan, keys, row)
        ]
    bound = 0
    for kind, ids in ((_bind_case, unbound), (_bind_scan, unbound_scans)):
        for one in ids:
            try:
                with Session(engine) as session, session.begin():
                    kind(session, keys, one)
                bound += 1
            except UserError as error:
                log.warning("%s", error)
    if bound:
        log.warning("%d cases and scans of an older version are now bound to their owners.", bound)


def _opens(read: Callable[..., object], keys: Keys, row: "Sequence[Any]") -> bool:
    try:
        read(keys, *row)
    except UserError:
        return False
    return True


def _bind_case(session: Session, keys: Keys, case: str) -> None:
    row = session.scalars(select(CaseRow).where(CaseRow.id == case)).one()
    card = _held(keys, case, row.card, "card")
    _compare(keys, case, card["owner"], row.owner)
    record = _held(keys, case, row.record, "record")
    finding = _held(keys, case, row.finding, "finding")
    _complete(case, [photo.position for photo in row.photos], len(row.photos))
    photos = [_plain(keys, case, p.jpeg, f"photo {p.position}") for p in row.photos]
    sealed = sealed_case(
        keys,
        case,
        Card(card["owner"], card["patient"], card["lesion"], _moment(card["taken"])),
        Record(record["consent"], _moment(record["consented"]), record["diagnosis"], len(photos)),
        photos=photos,
        finding=Finding(finding["confirmed"], finding["note"]),
        version=row.version,
    )
    session.execute(update(CaseRow).where(CaseRow.id == case).values(sealed.case))
    for photo in sealed.photos:
        place = (PhotoRow.case_id == case, PhotoRow.position == photo["position"])
        session.execute(update(PhotoRow).where(*place).values(jpeg=photo["jpeg"]))


def _bind_scan(session: Session, keys: Keys, scan: str) -> None:
    row = session.scalars(select(ScanRow).where(ScanRow.id == scan)).one()
    card = _held(keys, scan, row.card, "scan card")
    _compare(keys, scan, card["owner"], row.owner)
    names = _held(keys, scan, row.names, "scan names")
    question = select(ScanFileRow).where(ScanFileRow.scan_id == scan)
    files = session.scalars(question.order_by(ScanFileRow.position)).all()
    _complete(scan, [file.position for file in files], len(names))
    contents = [_plain(keys, scan, f.content, f"scan file {f.position}") for f in files]
    sealed, sealed_files = sealed_scan(
        keys, kept_scan(scan, card), dict(zip(names, contents, strict=True))
    )
    session.execute(update(ScanRow).where(ScanRow.id == scan).values(sealed))
    for file in sealed_files:
        place = (ScanFileRow.scan_id == scan, ScanFileRow.position == file["position"])
        session.execute(update(ScanFileRow).where(*place).values(content=file["content"]))


def _compare(keys: Keys, case: str, owner: str, code: str) -> None:
    if owner_code(keys.owners, owner) != code:
        raise UserError(
            f"case {case} does not belong to the login that its row names, so nobody can read it; "
            "delete it, or bring back the case book of before somebody changed it."
        )


def _held(keys: Keys, case: str, sealed: bytes, part: str) -> Any:
    return json.loads(_plain(keys, case, sealed, part))


def _plain(keys: Keys, case: str, sealed: bytes, part: str) -> bytes:
    try:
        return unseal_unbound(keys.cases[case], sealed, keys.book, case, part)
    except UserError:
        raise damaged(f"case {case}") from None


def _complete(case: str, positions: list[int], count: int) -> None:
    if positions != list(range(count)):
        raise damaged(f"case {case}")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
