"""Cases as encrypted rows, and rows as cases again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from sqlalchemy import insert

from skindx.casebook.case import KeptCase
from skindx.casebook.finding import Finding, Outside
from skindx.casebook.keys import Keys
from skindx.casebook.sealing import Binding, damaged, owner_code
from skindx.casebook.tables import CaseRow, PhotoRow
from skindx.core.errors import UserError
from skindx.diagnosis.record import Diagnosis

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session


NO_FINDING = Finding()


@dataclass(frozen=True)
class Card:
    """A case as a list shows it."""

    owner: str
    patient: str
    lesion: str
    taken: datetime


@dataclass(frozen=True)
class Record:
    """What was kept and why; `diagnosis` is JSON."""

    consent: str
    consented: datetime
    diagnosis: str
    photos: int
    """How many photos the case has, so that a missing one is noticed."""

    @property
    def consents(self) -> str:
        """What the patient agreed to and when, as the later parts of a case are bound to it."""
        return json.dumps([self.consent, _text(self.consented)])


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
    finding: Finding = NO_FINDING,
    version: int = 1,
) -> SealedCase:
    """Encrypt a case whose key is in `keys`; `finding` is what a clinician confirmed."""
    key, owner = keys.cases[case], owner_code(keys.owners, card.owner)
    binding = Binding(keys.book, case, owner, version)
    columns = {
        "id": case,
        "owner": owner,
        **sealed_parts(key, binding, card, record, finding),
    }
    # An edit makes a new version of everything but the photos.
    lasting = replace(binding, version=1)
    return SealedCase(
        columns,
        [
            {
                "case_id": case,
                "position": place,
                "jpeg": lasting.seal(key, jpeg, _photo(place, len(photos))),
            }
            for place, jpeg in enumerate(photos)
        ],
    )


def sealed_parts(
    key: bytes, binding: Binding, card: Card, record: Record, finding: Finding
) -> dict[str, Any]:
    """Encrypt what one version of a case says, without its photos; return its columns."""
    held_card = {
        "owner": card.owner,
        "patient": card.patient,
        "lesion": card.lesion,
        "taken": _text(card.taken),
    }
    held_record = {
        "consent": record.consent,
        "consented": _text(record.consented),
        "diagnosis": record.diagnosis,
        "photos": record.photos,
    }
    held_finding: dict[str, Any] = {"confirmed": finding.confirmed, "note": finding.note}
    if finding.outside:
        held_finding["outside"] = [finding.outside.name, finding.outside.icd10]
    bound = replace(binding, consents=record.consents)
    return {
        "version": binding.version,
        "card": binding.seal(key, json.dumps(held_card).encode(), "card"),
        "record": binding.seal(key, json.dumps(held_record).encode(), "record"),
        "finding": bound.seal(key, json.dumps(held_finding).encode(), "finding"),
    }


def insert_case(link: "Connection | Session", sealed: SealedCase) -> None:
    """Write an encrypted case within the caller's transaction."""
    link.execute(insert(CaseRow), [sealed.case])
    if sealed.photos:
        link.execute(insert(PhotoRow), sealed.photos)


def read_card(keys: Keys, case: str, owner: str, version: int, card: bytes) -> Card:
    """Return what a list shows; `owner` and `version` are those of the row.

    Raises UserError for a damaged row, and for one whose owner or version was changed.
    """
    binding = Binding(keys.book, case, owner, version)
    held = json.loads(binding.unseal(keys.cases[case], card, "card"))
    if owner_code(keys.owners, held["owner"]) != owner:
        raise damaged(f"case {case}")
    taken = datetime.fromisoformat(held["taken"])
    return Card(held["owner"], held["patient"], held["lesion"], taken)


def read_record(keys: Keys, row: CaseRow) -> Record:
    """Return what was kept and why. Raises UserError for a damaged row."""
    held = json.loads(_binding(keys, row).unseal(keys.cases[row.id], row.record, "record"))
    consented = datetime.fromisoformat(held["consented"])
    return Record(held["consent"], consented, held["diagnosis"], held["photos"])


def read_finding(keys: Keys, row: CaseRow, record: Record) -> Finding:
    """Return what a clinician confirmed. Raises UserError for a damaged row."""
    bound = replace(_binding(keys, row), consents=record.consents)
    held: Mapping[str, Any] = json.loads(bound.unseal(keys.cases[row.id], row.finding, "finding"))
    outside = Outside(*held["outside"]) if "outside" in held else None
    return Finding(held["confirmed"], held["note"], outside)


def read_row(keys: Keys, row: CaseRow) -> KeptCase:
    """Return the whole case. Raises UserError for a damaged row."""
    card = read_card(keys, row.id, row.owner, row.version, row.card)
    record, key, binding = read_record(keys, row), keys.cases[row.id], _binding(keys, row)
    finding = read_finding(keys, row, record)
    if [photo.position for photo in row.photos] != list(range(record.photos)):
        raise damaged(f"case {row.id}")
    lasting = replace(binding, version=1)
    try:
        diagnosis = Diagnosis.model_validate_json(record.diagnosis)
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
        consent=record.consent,
        consented=record.consented,
        diagnosis=diagnosis,
        confirmed=finding.confirmed,
        outside=finding.outside,
        note=finding.note,
        version=row.version,
        photos=tuple(
            lasting.unseal(key, photo.jpeg, _photo(photo.position, record.photos))
            for photo in row.photos
        ),
    )


def _binding(keys: Keys, row: CaseRow) -> Binding:
    return Binding(keys.book, row.id, row.owner, row.version)


def _photo(position: int, count: int) -> str:
    return f"photo {position} of {count}"


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
