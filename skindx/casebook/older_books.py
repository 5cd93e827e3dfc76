"""Case books of older versions, brought up to date when they are opened.

Those of skindx 0.1 are in plain text and are encrypted; later ones were sealed before owner,
consents and version were bound to each part, and are sealed again, one transaction a case.

Keys reach the medium first; then one transaction writes the encrypted rows and drops the old
tables, so a crash leaves the old book or the new one. What SQLite keeps of the old pages while it
does so, its rollback journal, is overwritten afterwards.
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    inspect,
    select,
    update,
)
from sqlalchemy.orm import Session

from skindx.casebook.encryption import damaged, owner_code, unseal_unbound
from skindx.casebook.kept_case import ConfirmedFinding
from skindx.casebook.key_file import KeyFile, Keys, new_key, overwrite
from skindx.casebook.sealed_rows import (
    CaseCard,
    CaseRecord,
    CaseRow,
    PhotoRow,
    ScanFileRow,
    ScanRow,
    SealedCase,
    insert_case,
    kept_scan,
    read_card,
    read_scan,
    sealed_case,
    sealed_scan,
)
from skindx.core.errors import UserError

log = logging.getLogger(__name__)

_OLD = MetaData()
_TEXT = ("owner", "patient", "lesion", "consent", "diagnosis", "confirmed", "note")
_CASES = Table(
    "cases",
    _OLD,
    Column("id", String, primary_key=True),
    *(Column(name, String) for name in _TEXT),
    Column("taken", DateTime(timezone=True)),
    Column("consented", DateTime(timezone=True)),
)
_PHOTOS = Table(
    "photos",
    _OLD,
    Column("case_id", String),
    Column("position", Integer),
    Column("jpeg", LargeBinary),
)
_KEYS = Table("keys", _OLD, Column("purpose", String), Column("key", LargeBinary))


def plain_cases(engine: Engine) -> frozenset[str] | None:
    """Return the ids of cases in plain text, None where there is no such table."""
    if not {"cases", "photos"} <= set(inspect(engine).get_table_names()):
        return None
    with engine.connect() as link:
        return frozenset(link.scalars(select(_CASES.c.id)))


def export_key(engine: Engine) -> bytes | None:
    """Return the secret that codes pseudonyms in exports of an old book: they still join."""
    if "keys" not in inspect(engine).get_table_names():
        return None
    with engine.connect() as link:
        return link.scalar(select(_KEYS.c.key).where(_KEYS.c.purpose == "export"))


def encrypt(engine: Engine, file: KeyFile) -> str:
    """Encrypt all cases in plain text and drop their tables, under the lock of the key file.

    Returns, as `bind` does, what was done in a sentence.
    """
    with _alone(engine) as link:
        # Read again: from here on no other connection can add to it.
        cases = list(link.scalars(select(_CASES.c.id).order_by(_CASES.c.taken, _CASES.c.id)))
        known = file.read().cases
        file.add({case: new_key() for case in cases if case not in known})
        for case in cases:
            insert_case(link, _sealed(link, file, case))
        for table in (_PHOTOS, _CASES, _KEYS):
            table.drop(link, checkfirst=True)
    return (
        f"{len(cases)} cases of this case book were in plain text and are encrypted now; backups, "
        "snapshots and old blocks of the disk may still hold them."
    )


def wipe_journal(engine: Engine) -> None:
    """Overwrite a rollback journal that a crash left beside a SQLite file: it holds plain text."""
    if engine.dialect.name == "sqlite" and _journal(engine).exists():
        with _alone(engine):
            pass


def _journal(engine: Engine) -> Path:
    return Path(f"{engine.url.database}-journal")


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction of its own, during which no other connection writes."""
    if engine.dialect.name != "sqlite":
        with engine.begin() as link:
            if engine.dialect.name == "postgresql":
                link.exec_driver_sql("LOCK TABLE cases, photos IN ACCESS EXCLUSIVE MODE")
            yield link
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as link:
        # A journal that stays in place can be overwritten; a deleted one is out of reach.
        link.exec_driver_sql("PRAGMA journal_mode = PERSIST")
        link.exec_driver_sql("BEGIN EXCLUSIVE")  # rolls back what a crash left half done
        try:
            yield link
            link.exec_driver_sql("COMMIT")
        finally:
            connection = link.connection.driver_connection
            if connection is not None and connection.in_transaction:
                link.exec_driver_sql("ROLLBACK")
            link.exec_driver_sql("BEGIN EXCLUSIVE")
            overwrite(_journal(engine))
            link.exec_driver_sql("COMMIT")
            link.exec_driver_sql("PRAGMA journal_mode = DELETE")


def _sealed(link: Connection, file: KeyFile, case: str) -> SealedCase:
    row = link.execute(select(_CASES).where(_CASES.c.id == case)).one()
    photos = select(_PHOTOS.c.jpeg).where(_PHOTOS.c.case_id == case)
    jpegs = list(link.scalars(photos.order_by(_PHOTOS.c.position)))
    return sealed_case(
        file.read(),
        case,
        CaseCard(row.owner, row.patient, row.lesion, _utc(row.taken)),
        CaseRecord(row.consent, _utc(row.consented), row.diagnosis, len(jpegs)),
        photos=jpegs,
        finding=ConfirmedFinding(row.confirmed, row.note),
    )


def _utc(moment: datetime) -> datetime:
    """SQLite gives back no time zone; everything was written in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def bind(engine: Engine, keys: Keys) -> str:
    """Seal again what is not bound yet, under the lock of the key file.

    A row whose code of the owner is not that of the owner in its card was changed, and stays as it
    is: it is never read.
    """
    cases = (CaseRow.id, CaseRow.owner, CaseRow.version, CaseRow.card)
    scans = (ScanRow.id, ScanRow.owner, ScanRow.card)
    bound = 0
    for columns, read, bind_one in ((cases, read_card, _bind_case), (scans, read_scan, _bind_scan)):
        with Session(engine) as session:
            rows = session.execute(select(*columns)).all()
        for row in rows:
            if row[0] not in keys.cases or _opens(read, keys, row):
                continue
            try:
                with Session(engine) as session, session.begin():
                    bind_one(session, keys, row[0])
                bound += 1
            except UserError as error:
                log.warning("%s", error)
    done = f"{bound} cases and scans of an older version are now bound to their owners."
    return done if bound else ""


def _opens(read: Callable[..., object], keys: Keys, row: Sequence[Any]) -> bool:
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
        CaseCard(
            card["owner"], card["patient"], card["lesion"], datetime.fromisoformat(card["taken"])
        ),
        CaseRecord(
            record["consent"],
            datetime.fromisoformat(record["consented"]),
            record["diagnosis"],
            len(photos),
        ),
        photos=photos,
        finding=ConfirmedFinding(finding["confirmed"], finding["note"]),
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
    query = select(ScanFileRow).where(ScanFileRow.scan_id == scan)
    files = session.scalars(query.order_by(ScanFileRow.position)).all()
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
