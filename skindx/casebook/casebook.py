"""The case book: keep, list, open, confirm, delete; every query names its owner."""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError
from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import selectinload

from skindx.casebook.case_names import (
    checked_name,
    name_key,
    one_spelling,
    require_pseudonym,
    spelled,
)
from skindx.casebook.casebook_database import SealedBook, open_database
from skindx.casebook.deletions import Deletion, case_deletions
from skindx.casebook.findings import ConfirmedFinding, Outside, Remarks, finding_of
from skindx.casebook.kept_case import (
    CASE_CONSENTS,
    PURPOSES,
    KeptCase,
    LesionHistory,
    PersonSeen,
    Told,
    consent_text,
    seen_on,
)
from skindx.casebook.key_file import Binding, damaged, owner_code
from skindx.casebook.scan_book import ScanBook
from skindx.casebook.sealed_rows import (
    CaseCard,
    CaseRecord,
    CaseRow,
    PhotoRow,
    ScanRow,
    insert_case,
    person_seen,
    read_card,
    read_finding,
    read_record,
    read_row,
    sealed_case,
    sealed_parts,
    told_of,
)
from skindx.core.errors import UserError
from skindx.diagnosis.case import FactsAdded, Patient
from skindx.diagnosis.case_actions import CaseAction, struck_out
from skindx.diagnosis.record import CaseAnswer
from skindx.texts.catalogue import joined, text


class NoSuchCase(UserError):  # noqa: N818
    """The login has no case of this id."""

    def __init__(self) -> None:
        super().__init__(text("case_gone"))


@dataclass(frozen=True)
class Casebook(SealedBook):
    """A database of encrypted cases and the file of their keys; one owner never sees another's.

    Lists decrypt all cards of an owner and no more. An index over coded pseudonyms would be faster,
    but its codes would outlive a deletion, and who holds the key file could try pseudonyms on them.
    """

    @classmethod
    def open(cls, where: str | Path, *, create: bool = True, keys: Path | None = None) -> Self:
        """Open, or create where it may, a case book by path (SQLite) or URL.

        `keys` is the key file; default: what SKINDX_CASEBOOK_KEYS names, then `PATH.keys` beside a
        SQLite file. A book in plain text, as skindx 0.1 wrote it, is encrypted. Raises UserError.
        """
        return cls(*open_database(where, keys, create=create))

    def keep(
        self,
        owner: str,
        answer: CaseAnswer,
        *,
        patient: str,
        lesion: str,
        consent: bool,
        compare: bool = False,
        train: bool = False,
        no_person: bool = False,
        facts: Patient | None = None,
    ) -> str:
        """Keep an answer and its photos; return the case's id. Raises UserError without consent.

        `consent` is to keeping alone; `compare` and `train` are consents of their own. Names that
        the owner has used stay as they were spelled first. Raises IdentifyingName for names that
        may say who the patient is, unless `no_person` says that they do not. `facts` are about the
        person, which the answer did not know.
        """
        if not consent:
            raise UserError(text("case_consent"))
        now, case = datetime.now(UTC), uuid.uuid4().hex
        patient, lesion = checked_name(patient, "patient"), checked_name(lesion, "lesion")
        try:
            known = self.known_names(owner)
        except UserError:  # a damaged row of another case keeps no new one out
            known = {}
        if not no_person:
            require_pseudonym(patient, lesion, "lesion", known)
        patient = spelled(patient, known)
        lesion = spelled(lesion, known.get(patient, ()))
        card = CaseCard(owner, patient, lesion, now)
        photos = [view.jpeg for view in answer.views]
        agreed = {"keep": consent, "compare": compare, "train": train}
        wording = consent_text(CASE_CONSENTS, [one for one in PURPOSES if agreed[one]])
        given = datetime.fromisoformat(answer.given)
        record = CaseRecord(
            wording, now, answer.diagnosis.model_dump_json(), len(photos), given, owner,
            features=answer.features,
        )  # fmt: skip
        if facts and facts.given:
            record = replace(record, added=(FactsAdded(facts, now, owner),))
        with self.keys.new_case(case) as keys:
            sealed = sealed_case(keys, case, card, record, photos=photos)
            with self.session("written") as session:
                insert_case(session, sealed)
        return case

    def known_names(self, owner: str) -> dict[str, list[str]]:
        """Return the names of the owner's patients and of their lesions, as spelled first."""
        names: dict[str, list[str]] = {}
        for card in self._cards(owner).values():
            lesions = names.setdefault(card.patient, [])
            if card.lesion not in lesions:
                lesions.append(card.lesion)
        for scan in self.scans.scans(owner):
            names.setdefault(spelled(scan.patient, names), [])
        return names

    def lesions(self, owner: str) -> list[LesionHistory]:
        """Return the owner's lesions, the one that a case was kept of last first."""
        cards = self._cards(owner)
        seen: dict[tuple[str, str], list[str]] = {}
        for case, card in cards.items():
            seen.setdefault((card.patient, card.lesion), []).append(case)
        told = {case: card.told for case, card in cards.items() if card.told}
        if len(told) < len(cards):
            told |= self._told(owner, cards.keys() - told.keys())
        lesions = []
        for name, kept in sorted(seen.items(), key=lambda one: cards[one[1][-1]].taken)[::-1]:
            ids = sorted(
                kept,
                key=lambda one: seen_on(told.get(one, Told()).photographed, cards[one].taken),
            )
            given = [told[case].finding for case in reversed(ids) if case in told]
            named = dict.fromkeys(
                replace(one, found=None, by="", clinician="") for one in given if one.is_given
            )
            last = told.get(ids[-1], Told())
            history = LesionHistory(
                name[0],
                name[1],
                len(ids),
                cards[ids[-1]].taken,
                last.photographed,
                last.urgency,
                tuple(named),
                last.finding.is_given,
                last.finding.is_confirmed,
                tuple((cards[one].taken, told[one]) for one in ids if one in told),
            )
            lesions.append(history)
        return lesions

    def _told(self, owner: str, cases: Collection[str]) -> dict[str, Told]:
        """Return the advice and the finding of cases whose cards are of an older version."""
        columns = (CaseRow.id, CaseRow.owner, CaseRow.version, CaseRow.record, CaseRow.finding)
        with self.session("read") as session:
            query = select(*columns).where(self._owned_by(owner))
            rows: Sequence[Any] = session.execute(query).all()
        keys = self.keys.read()
        told: dict[str, Told] = {}
        for row in rows:
            if row.id in cases:
                try:
                    record = read_record(keys, row)
                    told[row.id] = told_of(record, read_finding(keys, row, record))
                except (UserError, KeyError):  # the case itself says so when it is opened
                    continue
        return told

    def names_of(self, owner: str, case: str) -> tuple[str, str] | None:
        """Return the patient and the lesion of one of the owner's cases; None for no such case."""
        card = self._cards(owner).get(case)
        return (card.patient, card.lesion) if card else None

    def lesion(self, owner: str, case: KeptCase) -> LesionHistory:
        """Return the lesion of a case over time. Raises UserError where the case is gone."""
        named = (name_key(case.patient), name_key(case.lesion))
        found = (
            one
            for one in self.lesions(owner)
            if (name_key(one.patient), name_key(one.lesion)) == named
        )
        if (lesion := next(found, None)) is None:  # deleted since it was read
            raise NoSuchCase
        return lesion

    def cases(self, owner: str, patient: str, lesion: str) -> list[KeptCase]:
        """Return the cases of one lesion, oldest first."""
        wanted = (name_key(patient), name_key(lesion))
        cards = {
            case: card
            for case, card in self._cards(owner).items()
            if (name_key(card.patient), name_key(card.lesion)) == wanted
        }
        cases = self._read(self._owned_by(owner), CaseRow.id.in_(cards)) if cards else []
        return [case.renamed(cards[case.id].patient, cards[case.id].lesion) for case in cases]

    def persons(self, owner: str, patient: str, *, but: str = "") -> list[PersonSeen]:
        """Return what each case of a pseudonym tells of the person, oldest first, without `but`.

        A case that cannot be read tells nothing.
        """
        wanted = name_key(patient)
        cards = {
            case: card
            for case, card in self._cards(owner).items()
            if name_key(card.patient) == wanted and case != but
        }
        query = select(CaseRow.id, CaseRow.owner, CaseRow.version, CaseRow.record)
        with self.session("read") as session:
            rows: Sequence[Any] = session.execute(query.where(CaseRow.id.in_(cards))).all()
        keys, seen = self.keys.read(), {}
        for row in rows:
            with suppress(UserError, KeyError, ValidationError):
                seen[row.id] = person_seen(read_record(keys, row), cards[row.id].taken)
        return sorted((seen[case] for case in cards if case in seen), key=lambda one: one.day)

    def case(self, owner: str, case: str) -> KeptCase:
        """Return a case of the owner. Raises UserError for one that is not there."""
        found = self._read(self._owned_by(owner), CaseRow.id == case)
        if not found:
            raise NoSuchCase
        return found[0]

    def all_cases(self, owner: str | None = None) -> list[KeptCase]:
        """Return all cases, oldest first, each name of an owner's patient spelled in one way."""
        return one_spelling(self._read(*([] if owner is None else [self._owned_by(owner)])))

    def unreadable(self) -> list[str]:
        """Return the ids of cases and scans without a key in the key file: they cannot be read."""
        known = self.keys.read().cases
        with self.session("read") as session:
            ids = [*session.scalars(select(CaseRow.id)), *session.scalars(select(ScanRow.id))]
        return [one for one in ids if one not in known]

    def confirm(
        self,
        owner: str,
        case: str,
        label: str,
        note: str,
        known: Sequence[str],
        *,
        version: int,
        outside: Outside | None = None,
        confirmed_by: str = "",
        clinician: str = "",
        remarks: Remarks | None = None,
    ) -> None:
        """Write down what a clinician confirmed; "" takes it back. What stood before is kept.

        `outside` is a diagnosis that is none of the classes `known`, `confirmed_by` one of
        CONFIRMED_BY, `clinician` the name of whose diagnosis it is, `remarks` what was said of the
        change. `version` is that of the case as it was shown. Raises UserError for a class that is
        not in `known`, and where the case has changed since.
        """
        finding = finding_of(label, note, known, outside, confirmed_by, clinician=clinician)
        now = datetime.now(UTC)
        self._edit(
            owner,
            case,
            version,
            lambda record, before: (record, finding.written(before, now, owner, remarks)),
        )

    def agree(self, owner: str, case: str, *, compare: bool, train: bool, version: int) -> None:
        """Write down that a patient now agrees to comparing and training, or no longer does.

        What held before is kept. Keeping ends with a deletion. Raises UserError where the case has
        changed since `version`.
        """
        agreed = {"keep": True, "compare": compare, "train": train}
        wording = consent_text(CASE_CONSENTS, [one for one in PURPOSES if agreed[one]])
        now = datetime.now(UTC)
        self._edit(
            owner,
            case,
            version,
            lambda record, finding: (record.agreed(wording, now, owner), finding),
        )

    def add_facts(self, owner: str, case: str, facts: Patient, *, version: int) -> None:
        """Write down facts about the person that the answer did not know; it stays as it was.

        Raises UserError where the case has changed since `version`.
        """
        added = FactsAdded(facts, datetime.now(UTC), owner)
        self._edit(
            owner,
            case,
            version,
            lambda record, finding: (replace(record, added=(*record.added, added)), finding),
        )

    def record_action(self, owner: str, case: str, action: CaseAction, *, version: int) -> None:
        """Write down what was done about a case, behind what was written before.

        Raises UserError where the case has changed since `version`.
        """
        self._edit(
            owner,
            case,
            version,
            lambda record, finding: (
                replace(record, actions=(*record.actions, action)),
                finding,
            ),
        )

    def strike_action(
        self, owner: str, case: str, place: int, *, version: int, name: str = "", why: str
    ) -> None:
        """Strike out an entry of what was done, by its place among them; it stays with a trace.

        `name` and `why` are who does so for which reason. Raises UserError for none that stands,
        without a reason, and where the case has changed since `version`.
        """
        self._edit(
            owner,
            case,
            version,
            lambda record, finding: (
                replace(record, actions=struck_out(record.actions, place, owner, name, why)),
                finding,
            ),
        )

    def _edit(
        self,
        owner: str,
        case: str,
        version: int,
        change: Callable[[CaseRecord, ConfirmedFinding], tuple[CaseRecord, ConfirmedFinding]],
    ) -> None:
        """Seal a case again as a new version. Raises UserError where it has changed since."""
        keys = self.keys.read()
        if case not in keys.cases:
            raise NoSuchCase
        code = owner_code(keys.owners, owner)
        mine = (CaseRow.id == case, CaseRow.owner == code)
        with self.session("written") as session:
            row = session.scalar(select(CaseRow).where(*mine))
            if row is None:
                raise NoSuchCase
            if row.version != version:
                raise UserError(joined(text("case_changed"), text("case_changed_do")))
            before = read_record(keys, row)
            record, finding = change(before, read_finding(keys, row, before))
            parts = sealed_parts(
                keys.cases[case],
                Binding(keys.book, case, code, version + 1),
                read_card(keys, case, code, version, row.card),
                record,
                finding,
            )
            # One statement compares and writes, so that of two windows one is refused.
            edit = update(CaseRow).where(*mine, CaseRow.version == version).values(parts)
            if session.execute(edit.returning(CaseRow.id)).first() is None:
                raise UserError(joined(text("case_changed"), text("case_changed_do")))

    def delete(self, owner: str | None, case: str) -> None:
        """Delete a case: destroy its key, then its row; None: of any owner. Raises UserError."""
        photos = select(func.count()).where(PhotoRow.case_id == CaseRow.id).scalar_subquery()
        with self.keys.locked():
            with self.session("read") as session:
                query = select(CaseRow.owner, CaseRow.version, CaseRow.card, photos)
                row = session.execute(query.where(CaseRow.id == case)).one_or_none()
            keys = self.keys.read()
            if row is None or (owner is not None and row.owner != owner_code(keys.owners, owner)):
                raise NoSuchCase
            kept = None
            try:
                # The owner's is opened, so that a copied code destroys no other owner's key.
                card = read_card(keys, case, row.owner, row.version, row.card)
                kept = card.taken.astimezone().date()
            except KeyError:
                if owner is not None:
                    raise NoSuchCase from None
            except UserError:
                if owner is not None:
                    raise
            trace = Deletion("case", datetime.now(UTC), owner or "", owner is None, row[-1], kept)
            self.destroy(case, case_deletions(case), row.owner, trace)

    @property
    def scans(self) -> ScanBook:
        """The scans of wide photos in this case book."""
        return ScanBook(self.engine, self.keys)

    def export_key(self) -> bytes:
        """Return the secret under which exports code pseudonyms."""
        return self.keys.read().export

    def _owned_by(self, owner: str) -> ColumnElement[bool]:
        return CaseRow.owner == owner_code(self.keys.read().owners, owner)

    def _cards(self, owner: str, *conditions: ColumnElement[bool]) -> Mapping[str, CaseCard]:
        """Return the cards by the ids of their cases, oldest first, each name in one spelling."""
        columns = (CaseRow.id, CaseRow.owner, CaseRow.version, CaseRow.card)
        with self.session("read") as session:
            query = select(*columns).where(self._owned_by(owner), *conditions)
            rows = session.execute(query).all()
        keys = self.keys.read()
        cards = [
            (read_card(keys, case, code, version, card), case)
            for case, code, version, card in rows
            if case in keys.cases
        ]
        cards.sort(key=lambda one: (one[0].taken, one[1]))
        names = one_spelling([card for card, _ in cards])
        return {case: card for (_, case), card in zip(cards, names, strict=True)}

    def _read(self, *conditions: ColumnElement[bool]) -> list[KeptCase]:
        query = select(CaseRow).where(*conditions).options(selectinload(CaseRow.photos))
        with self.session("read") as session:
            rows = session.scalars(query).all()
            keys = self.keys.read()
            if None in rows:  # a row without its id
                raise damaged("a case")
            cases = [read_row(keys, row) for row in rows if row.id in keys.cases]
        return sorted(cases, key=lambda case: (case.taken, case.id))
