"""The case book: keep, list, open, confirm, delete; every query names its owner.

Confirmed cases are exported as a folder that `skindx build` takes in: feedback becomes training
data.
"""

import hmac
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import yaml
from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import selectinload

from skindx.casebook.case_names import (
    checked_name,
    name_key,
    one_spelling,
    require_pseudonym,
    spelled,
)
from skindx.casebook.casebook_database import SealedBook, open_database
from skindx.casebook.kept_case import (
    CASE_CONSENTS,
    PURPOSES,
    ConfirmedFinding,
    KeptCase,
    LesionHistory,
    Outside,
    consent_text,
    finding_of,
)
from skindx.casebook.key_file import Binding, damaged, owner_code
from skindx.casebook.scan_book import ScanBook
from skindx.casebook.sealed_rows import (
    CaseCard,
    CaseRecord,
    CaseRow,
    ScanRow,
    case_deletions,
    insert_case,
    read_card,
    read_finding,
    read_record,
    read_row,
    sealed_case,
    sealed_parts,
)
from skindx.core.atomic_files import FolderKind
from skindx.core.errors import UserError
from skindx.core.private_files import private_output, write_private, write_private_csv
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import CaseAnswer

_GONE = "this case is not in the case book; it may have been deleted: open the list again."
_CHANGED = (
    "this case was changed in another window after this one showed it, so what you wrote is not "
    "saved; look at what is there now, then write your note again."
)


@dataclass(frozen=True)
class Casebook(SealedBook):
    """A database of encrypted cases and the file of their keys; one owner never sees another's.

    Lists decrypt all cards of an owner. An index over coded pseudonyms would be faster, but its
    codes would outlive a deletion, and who holds the key file could try pseudonyms on them.
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
    ) -> str:
        """Keep an answer and its photos; return the case's id. Raises UserError without consent.

        `consent` is to keeping alone; `compare` and `train` are consents of their own. Names that
        the owner has used stay as they were spelled first. Raises IdentifyingName for names that
        may say who the patient is, unless `no_person` says that they do not.
        """
        if not consent:
            raise UserError("nothing is kept without consent; tick the box, or leave it.")
        now, case = datetime.now(UTC), uuid.uuid4().hex
        patient, lesion = checked_name(patient, "patient"), checked_name(lesion, "lesion")
        if not no_person:
            require_pseudonym(patient, lesion, "lesion")
        try:
            known = self.known_names(owner)
        except UserError:  # a damaged row of another case keeps no new one out
            known = {}
        patient = spelled(patient, known)
        lesion = spelled(lesion, known.get(patient, ()))
        card = CaseCard(owner, patient, lesion, now)
        photos = [view.jpeg for view in answer.views]
        agreed = {"keep": consent, "compare": compare, "train": train}
        text = consent_text(CASE_CONSENTS, [one for one in PURPOSES if agreed[one]])
        record = CaseRecord(text, now, answer.diagnosis.model_dump_json(), len(photos))
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
        """Return the owner's lesions, the one seen last first."""
        seen: dict[tuple[str, str], list[datetime]] = {}
        for card in self._cards(owner).values():
            seen.setdefault((card.patient, card.lesion), []).append(card.taken)
        lesions = [LesionHistory(*name, len(taken), max(taken)) for name, taken in seen.items()]
        return sorted(lesions, key=lambda lesion: lesion.last, reverse=True)

    def names_of(self, owner: str, case: str) -> tuple[str, str] | None:
        """Return the patient and the lesion of one of the owner's cases; None for no such case."""
        card = self._cards(owner).get(case)
        return (card.patient, card.lesion) if card else None

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

    def case(self, owner: str, case: str) -> KeptCase:
        """Return a case of the owner. Raises UserError for one that is not there."""
        found = self._read(self._owned_by(owner), CaseRow.id == case)
        if not found:
            raise UserError(_GONE)
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
    ) -> None:
        """Write down what a clinician confirmed; "" takes it back.

        `outside` is a diagnosis that is none of the classes `known`, `confirmed_by` one of
        CONFIRMED_BY. `version` is that of the case as it was shown. Raises UserError for a class
        that is not in `known`, and where the case has changed since.
        """
        finding, now = finding_of(label, note, known, outside, confirmed_by), datetime.now(UTC)
        self._edit(
            owner, case, version, lambda record, before: (record, finding.dated(before, now))
        )

    def agree(self, owner: str, case: str, *, compare: bool, train: bool, version: int) -> None:
        """Write down that a patient now agrees to comparing and training, or no longer does.

        Keeping ends with a deletion. Raises UserError where the case has changed since `version`.
        """
        agreed = {"keep": True, "compare": compare, "train": train}
        text = consent_text(CASE_CONSENTS, [one for one in PURPOSES if agreed[one]])
        now = datetime.now(UTC)
        self._edit(
            owner,
            case,
            version,
            lambda record, finding: (replace(record, consent=text, consented=now), finding),
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
            raise UserError(_GONE)
        code = owner_code(keys.owners, owner)
        mine = (CaseRow.id == case, CaseRow.owner == code)
        with self.session("written") as session:
            row = session.scalar(select(CaseRow).where(*mine))
            if row is None:
                raise UserError(_GONE)
            if row.version != version:
                raise UserError(_CHANGED)
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
                raise UserError(_CHANGED)

    def delete(self, owner: str | None, case: str) -> None:
        """Delete a case: destroy its key, then its row; None: of any owner. Raises UserError."""
        with self.keys.locked():
            # The owner's are opened, so that a copied code destroys no other owner's key.
            there = self._ids() if owner is None else self._cards(owner, CaseRow.id == case)
            if case not in there:
                raise UserError(_GONE)
            self.destroy("case", case, case_deletions(case))

    @property
    def scans(self) -> ScanBook:
        """The scans of wide photos in this case book."""
        return ScanBook(self.engine, self.keys)

    def export_key(self) -> bytes:
        """Return the secret under which exports code pseudonyms."""
        return self.keys.read().export

    def _owned_by(self, owner: str) -> ColumnElement[bool]:
        return CaseRow.owner == owner_code(self.keys.read().owners, owner)

    def _ids(self) -> set[str]:
        with self.session("read") as session:
            return set(session.scalars(select(CaseRow.id)))

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


LICENCE = "private, kept with consent for training this model"
TABLE = "pictures.csv"
RECIPE = "recipe.yaml"
_EXPORT = FolderKind("an export of cases", TABLE, (RECIPE, "pictures"))
_FACTS = tuple(name for name, fact in INTAKE.items() if fact.trains)
_COLUMNS = (
    *("file", "label", "confirmed_by", "group", "licence", "attribution", "lesion"),
    *(*_FACTS, "taken", "consent", "consented"),
)


def export(cases: Sequence[KeptCase], out: Path, key: bytes, *, taxonomy: str | None = None) -> int:
    """Write photos, their table and a recipe to `out`; return the number of photos.

    Only cases are written whose patient agreed to training and whose diagnosis is confirmed and one
    of the model's classes: a clinical opinion confirms nothing and trains nothing. All photos of
    one patient bear one group, so that no split tears them apart; pseudonyms and notes stay behind,
    and codes made with the case book's `key` stand in their place. Raises UserError where nothing
    can be written.
    """
    confirmed = [
        case
        for case in cases
        if case.confirmed and not case.is_opinion and "train" in case.purposes
    ]
    if not confirmed:
        raise UserError(
            f"none of the {len(cases)} cases has a confirmed class and the patient's consent to "
            f"training{_left_out(cases)}; confirm some in the case book and export again."
        )
    _EXPORT.check(out)
    with private_output(out, _EXPORT) as folder:
        rows = [row for case in confirmed for row in _write(case, folder, key)]
        write_private_csv(
            folder / TABLE, _COLUMNS, ([row[name] for name in _COLUMNS] for row in rows)
        )
        source = {"kind": "files", "path": str(out.resolve() / TABLE)}
        recipe = {
            "name": "casebook",
            **({"taxonomy": taxonomy} if taxonomy else {}),
            "sources": [source | {"columns": {"confirmed": "confirmed_by"}}],
        }
        write_private(folder / RECIPE, yaml.safe_dump(recipe, sort_keys=False))
    return len(rows)


def left_out(cases: Sequence[KeptCase]) -> str:
    """Return which confirmed cases an export leaves out and why, in a sentence; "" for none."""
    why = _left_out(cases)
    return f"Left out{why.replace(' (', ': ').rstrip(')')}." if why else ""


def _left_out(cases: Sequence[KeptCase]) -> str:
    opinions = sum(bool(case.confirmed) and case.is_opinion for case in cases)
    silent = sum(
        bool(case.confirmed) and not case.is_opinion and "train" not in case.purposes
        for case in cases
    )
    outside = sum(case.outside is not None for case in cases)
    reasons = [
        f"{count} {what}"
        for count, what in (
            (silent, "confirmed without consent to training"),
            (opinions, "with a clinical opinion that nothing confirmed"),
            (outside, "with a diagnosis that is no class of the model"),
        )
        if count
    ]
    return f" ({', '.join(reasons)})" if reasons else ""


def _write(case: KeptCase, folder: Path, key: bytes) -> list[dict[str, object]]:
    patient = case.diagnosis.patient
    person = f"{case.owner}\n{case.patient}"  # spelled in one way by `all_cases`
    rows: list[dict[str, object]] = []
    for position, jpeg in enumerate(case.photos):
        name = f"pictures/{case.id}-{position}.jpg"
        write_private(folder / name, jpeg)
        rows.append(
            {
                "file": name,
                "label": case.confirmed,
                "confirmed_by": case.confirmed_by,
                "group": _code(key, person),
                "licence": LICENCE,
                "attribution": f"case book, consent of {case.consented:%Y-%m-%d}",
                "lesion": _code(key, f"{person}\n{case.lesion}"),
                **{name: patient.given.get(name, "") for name in _FACTS},
                "taken": case.diagnosis.photos[position].taken,
                "consent": case.consent,
                "consented": case.consented.isoformat(timespec="seconds"),
            }
        )
    return rows


def _code(key: bytes, text: str) -> str:
    """Return a code in place of a pseudonym: the same each time, so that exports can be joined.

    Keyed: pseudonyms are short, and a plain hash of one is found by trying all.
    """
    return f"casebook-{hmac.digest(key, text.encode(), 'sha256').hex()[:16]}"
