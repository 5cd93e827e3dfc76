"""Case books of skindx 0.1, which are in plain text, encrypted when they are opened.

Keys reach the medium first; then one transaction writes the encrypted rows and drops the old
tables, so a crash leaves the old book or the new one. What SQLite keeps of the old pages while it
does so, its rollback journal, is overwritten afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

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
)

from skindx.casebook.kept_case import ConfirmedFinding
from skindx.casebook.key_file import KeyFile, new_key, overwrite
from skindx.casebook.sealed_rows import (
    CaseCard,
    CaseRecord,
    SealedCase,
    insert_case,
    sealed_case,
)

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

    Returns what was done in a sentence.
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
