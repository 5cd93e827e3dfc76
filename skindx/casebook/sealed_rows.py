"""The case book's tables, and cases and scans as their encrypted rows.

Nothing in the tables names a patient or shows a photo without the key file. A book of an older
version gets the tables of scans when it is opened.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import Connection, ForeignKey, LargeBinary, String, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from skindx.casebook.findings import (
    NO_FINDING,
    ConfirmedFinding,
    diagnosis_from_json,
    diagnosis_to_json,
    earlier_from_json,
    earlier_to_json,
    finding_from_json,
    finding_to_json,
)
from skindx.casebook.kept_case import (
    ConsentEntry,
    KeptCase,
    PersonSeen,
    Told,
    first_day,
    purposes_of,
)
from skindx.casebook.key_file import Binding, Keys, damaged, owner_code
from skindx.core.errors import UserError
from skindx.diagnosis.case import FactsAdded, Patient, person_with
from skindx.diagnosis.case_actions import CaseAction, action_from_json, action_to_json, standing
from skindx.diagnosis.checklist_advice import tier_of_advice
from skindx.diagnosis.record import Diagnosis
from skindx.imaging.photo_date import day_of


class CasebookTable(DeclarativeBase):
    """Holds the tables' descriptions."""


class BookRow(CasebookTable):
    """The name of the case book, which its key file bears too: there is one row."""

    __tablename__ = "book"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)


class CaseRow(CasebookTable):
    """One case, encrypted in three parts, since a list of many cases needs the first alone."""

    __tablename__ = "sealed_cases"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    """Code of the login name, `key_file.owner_code`."""
    version: Mapped[int] = mapped_column(default=1)
    """Grows with each change, so that an edit of an older state is noticed."""
    card: Mapped[bytes] = mapped_column(LargeBinary)
    """Owner, patient, lesion, time, and what a list says of the case."""
    record: Mapped[bytes] = mapped_column(LargeBinary)
    """Consent and diagnosis."""
    finding: Mapped[bytes] = mapped_column(LargeBinary)
    """Confirmed class and note."""
    photos: Mapped[list["PhotoRow"]] = relationship(
        cascade="all, delete-orphan", order_by="PhotoRow.position", passive_deletes=True
    )


class PhotoRow(CasebookTable):
    """One photo of a case, re-encoded and encrypted."""

    __tablename__ = "sealed_photos"

    case_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("sealed_cases.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    jpeg: Mapped[bytes] = mapped_column(LargeBinary)


class ScanRow(CasebookTable):
    """One scan, encrypted in two parts, since a list of many needs the first alone."""

    __tablename__ = "sealed_scans"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    """Code of the login name, `key_file.owner_code`."""
    card: Mapped[bytes] = mapped_column(LargeBinary)
    """Owner, patient, view, time, consent, counts."""
    names: Mapped[bytes] = mapped_column(LargeBinary)
    """Names of the files, in their order."""


class ScanFileRow(CasebookTable):
    """One file of a scan, encrypted."""

    __tablename__ = "sealed_scan_files"

    scan_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("sealed_scans.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)


@dataclass(frozen=True)
class CaseCard:
    """A case as a list shows it."""

    owner: str
    patient: str
    lesion: str
    taken: datetime
    told: Told | None = None
    """None in a case of an older version, and in one that is being written."""

    @property
    def place(self) -> str:
        """The lesion."""
        return self.lesion

    def renamed(self, patient: str, lesion: str) -> Self:
        return replace(self, patient=patient, lesion=lesion)


@dataclass(frozen=True)
class CaseRecord:
    """What was kept and why; `diagnosis` is JSON."""

    consent: str
    consented: datetime
    diagnosis: str
    photos: int
    """How many photos the case has, so that a missing one is noticed."""
    answered: datetime | None = None
    """When the answer was given; None in a case of an older version."""
    consented_by: str = ""
    """Login that wrote the consent down; "" in a case of an older version."""
    earlier_consents: tuple[ConsentEntry, ...] = ()
    """Oldest first."""
    unrecorded: bool = False
    """An older version changed the case; what it may have replaced is not known."""
    added: tuple[FactsAdded, ...] = ()
    """Facts about the person that were recorded after the answer, oldest first."""
    actions: tuple[CaseAction, ...] = ()
    """What was done about the case, in the order in which it was written down."""
    features: tuple[bytes, ...] = field(default=(), repr=False)
    """Embedding of each photo as float16; empty in a case of an older version."""

    @property
    def consent_entries(self) -> tuple[ConsentEntry, ...]:
        """What the patient agreed to from when on; the last holds."""
        now = ConsentEntry(self.consent, self.consented, self.consented_by)
        return (*self.earlier_consents, now)

    def agreed(self, text: str, now: datetime, by: str) -> "CaseRecord":
        """Return the record with another consent; the one that stood joins the earlier ones."""
        if purposes_of(text) == purposes_of(self.consent):
            return self
        before = self.consent_entries
        return replace(self, consent=text, consented=now, consented_by=by, earlier_consents=before)

    @property
    def consents(self) -> str:
        """What the patient agreed to and when, as the later parts of a case are bound to it."""
        return consents_text(self.consent, self.consented)


@dataclass(frozen=True)
class SealedCase:
    """The encrypted columns of a case and of its photos."""

    case: dict[str, Any]
    photos: list[dict[str, Any]]


def sealed_case(
    keys: Keys,
    case: str,
    card: CaseCard,
    record: CaseRecord,
    *,
    photos: Sequence[bytes],
    finding: ConfirmedFinding = NO_FINDING,
    version: int = 1,
) -> SealedCase:
    """Encrypt a case whose key is in `keys`; `finding` is what a clinician confirmed."""
    key, owner = keys.cases[case], owner_code(keys.owners, card.owner)
    binding = Binding(keys.book, case, owner, version)
    columns = {"id": case, "owner": owner, **sealed_parts(key, binding, card, record, finding)}
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
    key: bytes, binding: Binding, card: CaseCard, record: CaseRecord, finding: ConfirmedFinding
) -> dict[str, Any]:
    """Encrypt what one version of a case says, without its photos; return its columns."""
    told = told_of(record, finding)
    held_card = {
        "owner": card.owner,
        "patient": card.patient,
        "lesion": card.lesion,
        "taken": moment_text(card.taken),
        "told": [told.urgency, diagnosis_to_json(told.finding)],
        "photographed": told.photographed.isoformat() if told.photographed else "",
        "lapsed": earlier_to_json(told.lapsed) if told.lapsed else [],
        "was_replaced": told.was_replaced,
        "actions": [action_to_json(one) for one in told.actions],
        "had_entries": told.had_entries,  # a card without it holds what the model alone advised
        "compares": told.compares,
    }
    held_record = asdict(replace(record, added=(), actions=())) | {
        "consented": moment_text(record.consented),
        "features": [b64encode(one).decode() for one in record.features],
    }
    held_record["answered"] = moment_text(record.answered) if record.answered else ""
    held_record["added"] = [[one.given, moment_text(one.when), one.by] for one in record.added]
    held_record["actions"] = [action_to_json(one) for one in record.actions]
    held_record["earlier_consents"] = [
        [one.consent, moment_text(one.when), one.who] for one in record.earlier_consents
    ]
    bound = replace(binding, consents=record.consents)
    return {
        "version": binding.version,
        "card": binding.seal(key, json.dumps(held_card).encode(), "card"),
        "record": binding.seal(key, json.dumps(held_record).encode(), "record"),
        "finding": bound.seal(key, json.dumps(finding_to_json(finding)).encode(), "finding"),
    }


def told_of(record: CaseRecord, finding: ConfirmedFinding) -> Told:
    """Return what a list says of a case."""
    held = json.loads(record.diagnosis)
    day = first_day(photo.get("taken", "") for photo in held.get("photos", ()))
    try:
        tier = tier_of_advice(Diagnosis.model_validate_json(record.diagnosis))
    except ValidationError:  # the case itself says so when it is opened
        tier = held.get("next_step", {}).get("urgency")
    lapsed, was_replaced = finding.lapsed
    return Told(
        tier,
        finding.alone,
        day,
        lapsed,
        was_replaced,
        tuple(standing(record.actions)),
        bool(record.actions),
        "compare" in purposes_of(record.consent),
    )


def person_seen(record: CaseRecord, taken: datetime) -> PersonSeen:
    """Return what a case that was kept at `taken` tells of the person. Raises ValidationError."""
    diagnosis = Diagnosis.model_validate_json(record.diagnosis)
    day = first_day(photo.taken for photo in diagnosis.photos) or taken.astimezone().date()
    return PersonSeen(person_with(diagnosis.patient, record.added), day)


def insert_case(link: Connection | Session, sealed: SealedCase) -> None:
    """Write an encrypted case within the caller's transaction."""
    link.execute(insert(CaseRow), [sealed.case])
    if sealed.photos:
        link.execute(insert(PhotoRow), sealed.photos)


def read_card(keys: Keys, case: str, owner: str, version: int, card: bytes) -> CaseCard:
    """Return what a list shows; `owner` and `version` are those of the row.

    Raises UserError for a damaged row, and for one whose owner or version was changed.
    """
    binding = Binding(keys.book, case, owner, version)
    held = opened_card(keys, binding, card, "card")
    taken = datetime.fromisoformat(held["taken"])
    told = None
    if held.keys() >= {"had_entries", "compares"}:  # else an older version wrote the card
        urgency, finding = held["told"]
        told = Told(
            urgency,
            diagnosis_from_json(finding),
            day_of(held["photographed"]),
            earlier_from_json(held["lapsed"]) if held["lapsed"] else None,
            held["was_replaced"],
            tuple(map(action_from_json, held["actions"])),
            held["had_entries"],
            held["compares"],
        )
    return CaseCard(held["owner"], held["patient"], held["lesion"], taken, told)


def read_record(keys: Keys, row: CaseRow) -> CaseRecord:
    """Return what was kept and why. Raises UserError for a damaged row."""
    held = json.loads(_binding(keys, row).unseal(keys.cases[row.id], row.record, "record"))
    answered = datetime.fromisoformat(held["answered"]) if held.get("answered") else None
    # A record of an older version holds no earlier consents; a row of version 1 has none.
    return CaseRecord(
        held["consent"],
        datetime.fromisoformat(held["consented"]),
        held["diagnosis"],
        held["photos"],
        answered,
        held.get("consented_by", ""),
        tuple(
            ConsentEntry(text, datetime.fromisoformat(when), who)
            for text, when, who in held.get("earlier_consents", ())
        ),
        bool(held.get("unrecorded", row.version > 1)),
        tuple(
            FactsAdded(Patient(**facts), datetime.fromisoformat(when), by)
            for facts, when, by in held.get("added", ())
        ),
        tuple(map(action_from_json, held.get("actions", ()))),
        tuple(map(b64decode, held.get("features", ()))),
    )


def read_finding(keys: Keys, row: CaseRow, record: CaseRecord) -> ConfirmedFinding:
    """Return what a clinician confirmed. Raises UserError for a damaged row."""
    bound = replace(_binding(keys, row), consents=record.consents)
    return finding_from_json(json.loads(bound.unseal(keys.cases[row.id], row.finding, "finding")))


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
            f"this version of skindx cannot read the diagnosis of case {row.id}, which a newer one "
            "saved; install the newest version of skindx."
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
        confirmed_by=finding.confirmed_by,
        found=finding.found,
        found_by=finding.by,
        clinician=finding.clinician,
        notes=finding.notes,
        earlier=finding.earlier,
        consents=record.consent_entries,
        unrecorded=record.unrecorded,
        added=record.added,
        actions=record.actions,
        features=record.features,
        answered=record.answered,
        note=finding.note,
        version=row.version,
        photos=tuple(
            lasting.unseal(key, photo.jpeg, _photo(photo.position, record.photos))
            for photo in row.photos
        ),
    )


def opened_card(keys: Keys, binding: Binding, card: bytes, part: str) -> dict[str, Any]:
    """Return what a card holds. Raises UserError where its owner is not that of the row."""
    held: dict[str, Any] = json.loads(binding.unseal(keys.cases[binding.id], card, part))
    if owner_code(keys.owners, held["owner"]) != binding.owner:
        raise damaged(f"case {binding.id}")
    return held


def _binding(keys: Keys, row: CaseRow) -> Binding:
    return Binding(keys.book, row.id, row.owner, row.version)


def _photo(position: int, count: int) -> str:
    return f"photo {position} of {count}"


def moment_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def consents_text(consent: str, consented: datetime) -> str:
    return json.dumps([consent, moment_text(consented)])
