"""Cases as encrypted rows, and rows as cases again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from sqlalchemy import insert

from skindx.casebook.case import KeptCase
from skindx.casebook.keys import Keys
from skindx.casebook.sealing import owner_code, seal, unseal
from skindx.casebook.tables import CaseRow, PhotoRow
from skindx.diagnosis.record import Diagnosis
from skindx.errors import UserError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


@dataclass(frozen=True)
class Card:
    """A case as a list shows it."""

    owner: str
    patient: str
    lesion: str
    taken: datetime


@dataclass(frozen=True)
class Record:
    """The constant part of a kept case; `diagnosis` is JSON."""

    consent: str
    consented: datetime
    diagnosis: str


@dataclass(frozen=True)
class SealedCase:
    """The encrypted columns of a case and of its photos."""

    case: dict[str, Any]
    photos: list[dict[str, Any]]


def sealed_case(
    keys: Keys,
    case: str,
    card: Card,
    record: Record,
    *,
    photos: Sequence[bytes],
    finding: tuple[str, str] = ("", ""),
) -> SealedCase:
    """Encrypt a case whose key is in `keys`; `finding` is the confirmed class and the note."""
    key = keys.cases[case]
    taken, consented = (
        moment.astimezone(UTC).isoformat() for moment in (card.taken, record.consented)
    )
    columns = {
        "id": case,
        "owner": owner_code(keys.owners, card.owner),
        "version": 1,
        "card": _seal(
            keys, case, "card", owner=card.owner, patient=card.patient, lesion=card.lesion,
            taken=taken,
        ),
        "record": _seal(
            keys, case, "record", consent=record.consent, consented=consented,
            diagnosis=record.diagnosis,
        ),
        "finding": sealed_finding(keys, case, *finding),
    }  # fmt: skip
    return SealedCase(
        columns,
        [
            {
                "case_id": case,
                "position": place,
                "jpeg": seal(key, jpeg, keys.book, case, f"photo {place}"),
            }
            for place, jpeg in enumerate(photos)
        ],
    )


def insert_case(link: "Connection | Session", sealed: SealedCase) -> None:
    """Write an encrypted case within the caller's transaction."""
    link.execute(insert(CaseRow), [sealed.case])
    if sealed.photos:
        link.execute(insert(PhotoRow), sealed.photos)


def sealed_finding(keys: Keys, case: str, confirmed: str, note: str) -> bytes:
    """Return what a clinician wrote, encrypted."""
    return _seal(keys, case, "finding", confirmed=confirmed, note=note)


def read_card(keys: Keys, case: str, card: bytes) -> Card:
    """Return what a list shows. Raises UserError for a damaged row."""
    held = _unseal(keys, case, "card", card)
    taken = datetime.fromisoformat(held["taken"])
    return Card(held["owner"], held["patient"], held["lesion"], taken)


def read_row(keys: Keys, row: CaseRow) -> KeptCase:
    """Return the whole case. Raises UserError for a damaged row."""
    card = read_card(keys, row.id, row.card)
    record = _unseal(keys, row.id, "record", row.record)
    finding = _unseal(keys, row.id, "finding", row.finding)
    key = keys.cases[row.id]
    try:
        diagnosis = Diagnosis.model_validate_json(record["diagnosis"])
    except ValidationError:
        # Its message would repeat the values.
        raise UserError(
            f"the diagnosis of case {row.id} was written by another version of skindx; open the "
            "case book with the version that kept it."
        ) from None
    return KeptCase(
        id=row.id,
        owner=card.owner,
        patient=card.patient,
        lesion=card.lesion,
        taken=card.taken,
        consent=record["consent"],
        consented=datetime.fromisoformat(record["consented"]),
        diagnosis=diagnosis,
        confirmed=finding["confirmed"],
        note=finding["note"],
        version=row.version,
        photos=tuple(
            unseal(key, photo.jpeg, keys.book, row.id, f"photo {photo.position}")
            for photo in row.photos
        ),
    )


def _seal(keys: Keys, case: str, part: str, **values: str) -> bytes:
    return seal(keys.cases[case], json.dumps(values).encode(), keys.book, case, part)


def _unseal(keys: Keys, case: str, part: str, sealed: bytes) -> Mapping[str, str]:
    held: dict[str, str] = json.loads(unseal(keys.cases[case], sealed, keys.book, case, part))
    return held
