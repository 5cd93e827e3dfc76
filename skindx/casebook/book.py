"""The case book: keep, list, open, confirm, delete; every question names its owner."""

import secrets
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from skindx.casebook.case import CONSENT, LONGEST_NOTE, KeptCase, Lesion, checked_name
from skindx.casebook.engine import open_engine, without_password
from skindx.diagnosis.answer import Answer
from skindx.diagnosis.record import Diagnosis
from skindx.errors import UserError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from skindx.casebook.tables import CaseRow

_GONE = "this case is not in the case book; it may have been deleted: open the list anew."


@dataclass(frozen=True)
class Casebook:
    """A database of kept cases; one owner never reaches another's."""

    engine: "Engine"

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True) -> Self:
        """Open, or create where it may, a case book by path (SQLite) or URL. Raises UserError."""
        engine = open_engine(where, create=create)
        from sqlalchemy.exc import SQLAlchemyError

        from skindx.casebook.tables import Base

        try:
            Base.metadata.create_all(engine)
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error)
            raise UserError(
                f"the case book {without_password(str(where))} cannot be used ({reason}); check "
                "that it is one and that its server is there."
            ) from None
        return cls(engine)

    def keep(self, owner: str, answer: Answer, *, patient: str, lesion: str, consent: bool) -> str:
        """Keep an answer and its photos; return the case's id. Raises UserError without consent."""
        from skindx.casebook.tables import CaseRow, PhotoRow

        if not consent:
            raise UserError("nothing is kept without consent; tick the box, or leave it.")
        now = datetime.now(UTC)
        row = CaseRow(
            id=uuid.uuid4().hex,
            owner=owner,
            patient=checked_name(patient, "patient"),
            lesion=checked_name(lesion, "lesion"),
            taken=now,
            consent=CONSENT,
            consented=now,
            diagnosis=answer.diagnosis.model_dump_json(),
            photos=[
                PhotoRow(position=position, jpeg=view.jpeg)
                for position, view in enumerate(answer.views)
            ],
        )
        case = row.id
        with self._session() as session:
            session.add(row)
        return case

    def lesions(self, owner: str) -> list[Lesion]:
        """Return the owner's lesions, the one seen last first."""
        from sqlalchemy import func, select

        from skindx.casebook.tables import CaseRow

        last = func.max(CaseRow.taken)
        question = (
            select(CaseRow.patient, CaseRow.lesion, func.count(), last)
            .where(CaseRow.owner == owner)
            .group_by(CaseRow.patient, CaseRow.lesion)
            .order_by(last.desc())
        )
        with self._session() as session:
            return [Lesion(p, n, count, _utc(at)) for p, n, count, at in session.execute(question)]

    def cases(self, owner: str, patient: str, lesion: str) -> list[KeptCase]:
        """Return the cases of one lesion, oldest first."""
        from skindx.casebook.tables import CaseRow

        return self._read(
            CaseRow.owner == owner, CaseRow.patient == patient, CaseRow.lesion == lesion
        )

    def all_cases(self, owner: str | None = None) -> list[KeptCase]:
        """Return all cases, of one owner or of everybody (for whoever runs the case book)."""
        from skindx.casebook.tables import CaseRow

        return self._read(*([] if owner is None else [CaseRow.owner == owner]))

    def confirm(self, owner: str, case: str, label: str, note: str, known: Sequence[str]) -> None:
        """Write down what a clinician confirmed; "" takes it back. Raises UserError."""
        if label and label not in known:
            raise UserError(f"{label[:40]!r} is no class of this bundle; choose one of the list.")
        if len(note) > LONGEST_NOTE:
            raise UserError(f"the note has {len(note)} characters; use at most {LONGEST_NOTE}.")
        with self._session() as session:
            row = _owned(session, owner, case)
            row.confirmed, row.note = label, note.strip()

    def delete(self, owner: str | None, case: str) -> None:
        """Delete a case so that its bytes are gone; None: whoever owns it. Raises UserError."""
        with self._session() as session:
            session.delete(_owned(session, owner, case))
        # What SQLite deleted is zeroes already; this gives the room back, here and elsewhere.
        if self.engine.dialect.name in ("sqlite", "postgresql"):
            from sqlalchemy import text
            from sqlalchemy.exc import OperationalError

            alone = self.engine.execution_options(isolation_level="AUTOCOMMIT")
            # While somebody else reads, the room is given back at the next deletion.
            with suppress(OperationalError), alone.connect() as link:
                link.execute(text("VACUUM"))

    def export_key(self) -> bytes:
        """Return the secret under which exports code pseudonyms, made when it is first needed."""
        from skindx.casebook.tables import KeyRow

        with self._session() as session:
            row = session.get(KeyRow, "export")
            if row is None:
                row = KeyRow(purpose="export", key=secrets.token_bytes(32))
                session.add(row)
            return row.key

    def _read(self, *conditions: object) -> list[KeptCase]:
        from sqlalchemy import select
        from sqlalchemy.orm import selectinload

        from skindx.casebook.tables import CaseRow

        question = (
            select(CaseRow)
            .where(*conditions)  # type: ignore[arg-type]
            .options(selectinload(CaseRow.photos))
            .order_by(CaseRow.taken, CaseRow.id)
        )
        with self._session() as session:
            return [_value(row) for row in session.scalars(question)]

    @contextmanager
    def _session(self) -> "Iterator[Session]":
        from sqlalchemy.orm import Session

        with Session(self.engine) as session, session.begin():
            yield session


def _owned(session: "Session", owner: str | None, case: str) -> "CaseRow":
    from skindx.casebook.tables import CaseRow

    row = session.get(CaseRow, case)
    if row is None or (owner is not None and row.owner != owner):
        raise UserError(_GONE)
    return row


def _value(row: "CaseRow") -> KeptCase:
    return KeptCase(
        id=row.id,
        owner=row.owner,
        patient=row.patient,
        lesion=row.lesion,
        taken=_utc(row.taken),
        consent=row.consent,
        consented=_utc(row.consented),
        diagnosis=Diagnosis.model_validate_json(row.diagnosis),
        confirmed=row.confirmed,
        note=row.note,
        photos=tuple(photo.jpeg for photo in row.photos),
    )


def _utc(moment: datetime) -> datetime:
    """SQLite gives back no time zone; everything is written in UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
