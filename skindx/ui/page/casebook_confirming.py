"""What the forms of a kept case save: a diagnosis, a note, consents, after what must be asked."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from skindx.casebook.case_names import note_dated, note_doubt
from skindx.casebook.findings import OPINION, Outside, Remarks, outside_of
from skindx.casebook.kept_case import KeptCase, PersonSeen, filing_of
from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import action_of, by_login
from skindx.diagnosis.filing import BY_PATHOLOGY, RecordedDiagnosis, class_words
from skindx.diagnosis.report.record_page import SHORT_NOTE
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import match
from skindx.texts.catalogue import joined, text
from skindx.ui.page.casebook_doubts import another_lesion, another_person, seen_in
from skindx.ui.page.casebook_words import consent_words
from skindx.ui.page.form_html import patient_of

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook

CONFIRMS = ("confirm", "replace", "overwrite")
"""The buttons that save a diagnosis: the last two are the answers to a question."""


class AsksField(UserError):  # noqa: N818
    """A field of the form, named `field`, must be filled in or chosen again."""

    def __init__(self, sentence: str, field: str) -> None:
        super().__init__(sentence)
        self.field = field


class ReplaceOrNot(UserError):  # noqa: N818
    """A diagnosis was given beside another one that stands; `words` name the exchange."""

    def __init__(self, name: str, before: str) -> None:
        super().__init__(
            joined(text("book_replace_ask", name=name, before=before), text("book_replace_do"))
        )
        self.words = text("book_replace", name=name, before=before)


class AnotherLesion(UserError):  # noqa: N818
    """Facts speak against one lesion; they are kept where a person says that it is one."""


class AnotherPerson(UserError):  # noqa: N818
    """Facts speak against one person; they are kept where a person says that it is one."""


def require_same_person(
    casebook: "Casebook", owner: str, form: Mapping[str, str], seen: PersonSeen, *, but: str = ""
) -> None:
    """Raise AnotherPerson for a sex or age that no other case of the pseudonym allows.

    `but` is the case whose facts they are.
    """
    if form.get("same_person") == "yes":
        return
    try:
        others = casebook.persons(owner, form.get("patient", ""), but=but)
    except UserError:  # a damaged row of another case keeps no new one out
        return
    said = next(filter(None, (another_person(one, seen) for one in reversed(others))), [])
    if said:
        raise AnotherPerson(joined(*said, text("person_ask")))


class NoteDoubt(UserError):  # noqa: N818
    """A note that may say who the patient is; it is saved where a person says that it does not."""


class Overwrites(UserError):  # noqa: N818
    """A diagnosis would be replaced or taken back that something confirms, or that a note is on.

    `asks` says what stands, what comes and who said so, `adds` what else to know; `keeps` and
    `does` are the two answers, `before` is the diagnosis that stands, and `note` is
    the note on it, which may not fit any more; "": none, or it was changed too. A reason is asked
    for where a confirmed diagnosis goes, and must be given where histopathology had confirmed it.
    """

    def __init__(self, before: RecordedDiagnosis, new: str, how: str, by: str, note: str) -> None:
        nobody = text("book_over_nobody")
        who, does = before.by or nobody, text("book_over_back_do")
        self.asks = text("book_over_back", before=before.found, who=who)
        if new:
            basis = how or text("recorded_no_basis")
            self.asks = text(
                "book_over", before=before.found, who=who, name=new, how=basis, by=by or nobody
            )
            does = text("book_replace", before=before.name, name=new)
        must = _must_say_why(before)
        self.adds = joined(text("book_over_stays"), text("book_over_pathology") if must else "")
        super().__init__(joined(self.asks, self.adds))
        self.keeps, self.does = text("book_over_keep", name=before.name), does
        self.note = note if len(note) <= SHORT_NOTE else f"{note[:SHORT_NOTE]} …"
        self.asks_why, self.must = bool(before.confirmed_by), must


def _must_say_why(before: RecordedDiagnosis) -> bool:
    return before.confirmed_by == BY_PATHOLOGY


def confirmed(
    casebook: "Casebook", taxonomy: Taxonomy, owner: str, sent: dict[str, str], version: int
) -> str:
    """Save a confirmed diagnosis and the note; return what to say. Raises UserError."""
    before = casebook.case(owner, sent.get("case", ""))
    key, outside = _chosen(before, taxonomy, sent)
    how, note = sent.get("confirmed_by", ""), sent.get("note", "").strip()
    name = outside.words if outside else taxonomy[key].name if key in taxonomy.keys else key
    same = (before.confirmed, before.outside) == (key, outside)
    unsaid = not same and before.confirmed_by == how and not sent.get("basis_again")
    if how and name and before.finding.is_given and unsaid:
        asked = text("book_basis_ask", name=name, how=how)
        raise AsksField(joined(asked, text("book_basis_ask_do")), "confirmed_by")
    stays = same and how == before.confirmed_by
    clinician = " ".join(sent.get("clinician", before.clinician if same else "").split())
    stands = filing_of(before, taxonomy).recorded
    if name and not clinician and (not stays or before.clinician):
        raise AsksField(text("book_clinician_ask"), "clinician")
    doubt = note_doubt(note) if note != before.note else ""
    if doubt and sent.get("no_person") != "yes":
        raise NoteDoubt(joined(doubt, text("note_doubt_do")))
    asks = before.version == version
    old_note = note if stands and not same and note == before.note else ""
    fits, reason = sent.get("note_fits"), sent.get("reason", "").strip()
    lost = (
        stands
        and stands.confirmed_by
        and not stays
        and (sent["action"] != "overwrite" or (_must_say_why(stands) and not reason))
    )
    if stands and asks and (lost or (old_note and not fits)):
        raise Overwrites(stands, name, how, clinician or by_login(owner), old_note)
    note = "" if old_note and fits == "remove" else note
    stays = stays and (not name or clinician == before.clinician)
    # Whose diagnosis stood before need not be who writes now.
    writes = "" if owner or (same and clinician == before.clinician) else clinician
    writer = sent.get("note_writer", "") or writes
    fits_now = fits == "keep" and filing_of(before, taxonomy).is_note_older
    if stays and note == before.note and not fits_now:
        return text("book_nothing_saved")
    casebook.confirm(
        owner,
        before.id,
        key,
        note,
        taxonomy.keys,
        version=version,
        outside=outside,
        confirmed_by=how,
        clinician=clinician,
        remarks=Remarks.of(reason, writer, clinician, fits=fits == "keep"),
    )
    said = "" if stays else _diagnosis_saved(name, outside, how, stands)
    if not stays and key and sent.get("label") != key:
        known = match(sent.get("other", ""))
        if known and known.skin_class.icd10 not in ("", taxonomy[key].icd10):
            alone = text("book_within_do", code=known.skin_class.icd10)
            said = joined(said, class_words(known.skin_class.name, taxonomy[key]), alone)
    if note != before.note:
        said = joined(
            said, text("book_note_saved" if note else "book_note_removed"), note_dated(note)
        )
    elif note:
        said = joined(said, text("book_note_stays"))
    if stays:
        said = joined(
            said, text("book_saved_stays", name=name) if name else text("book_saved_none")
        )
    return said


def _chosen(
    before: KeptCase, taxonomy: Taxonomy, sent: Mapping[str, str]
) -> tuple[str, Outside | None]:
    """Return the key of a form's class, or its other diagnosis. Raises ReplaceOrNot for both.

    Once that is answered, the one that the case did not have takes the place of the other.
    """
    label = sent.get("label", "")
    named, outside = outside_of(sent.get("other", ""), sent.get("icd10", ""), taxonomy)
    if label not in taxonomy.keys or not (outside or (named and label != named)):
        return label or named, outside
    typed = outside.words if outside else taxonomy[named].name
    is_class_new = label != before.confirmed
    if sent["action"] == "confirm":
        names = (taxonomy[label].name, typed) if is_class_new else (typed, taxonomy[label].name)
        raise ReplaceOrNot(*names)
    return (label, None) if is_class_new else (named, outside)


def _diagnosis_saved(
    name: str, outside: Outside | None, how: str, before: RecordedDiagnosis | None
) -> str:
    if not name:
        return text("book_taken_back_saved", name=before.name) if before else ""
    if how == OPINION:
        kind = text("book_saved_opinion")
    elif outside:
        kind = text("book_saved_outside")
    elif how:
        kind = text("book_saved_confirmed", how=how)
    else:
        kind = text("book_saved_unstated")
    return joined(text("book_saved", name=name), kind)


def agreed(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> str:
    """Save what a patient agrees to now; return what changed. Raises UserError."""
    before = casebook.case(owner, sent.get("case", ""))
    compare, train = (sent.get(one) == "yes" for one in ("compare", "train"))
    if (compare, train) == tuple(one in before.purposes for one in ("compare", "train")):
        return text("book_nothing_saved")
    casebook.agree(owner, before.id, compare=compare, train=train, version=version_of(sent))
    new = consent_words(casebook.case(owner, before.id))[len(consent_words(before)) :]
    is_untrained = "train" in before.purposes and not train
    after = text("book_consent_after") if is_untrained else ""
    return joined(text("book_agreed_saved"), *new, after)


LATER_FACTS = ("age", "sex", "site", "laterality")
"""Facts about the person that can be recorded after the answer, where it did not know them."""


FACT_TICKS: dict[str, tuple[type[UserError], str]] = {
    "same_person": (AnotherPerson, "person_same"),
    "same_lesion": (AnotherLesion, "keep_same_lesion"),
}
"""What a form of facts asks about: the tick, the question that it answers, and its text."""


def facts_added(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> str:
    """Save facts about the person that an answer did not know; return what to say."""
    before = casebook.case(owner, sent.get("case", ""))
    known = before.diagnosis.patient.given
    asked = [one for one in LATER_FACTS if one in sent and one not in known]
    typed = patient_of({one: sent[one].strip() for one in asked})
    new = {
        one: getattr(typed, one)
        for one in asked
        if getattr(typed, one) != getattr(before.person, one)
    }
    if not new:
        return text("book_nothing_saved")
    if {"age", "sex"} & new.keys():
        seen = replace(seen_in(before), facts=before.person.model_copy(update=new))
        require_same_person(casebook, owner, sent, seen, but=before.id)
    if {"site", "laterality"} & new.keys() and sent.get("same_lesion") != "yes":
        lesion = other_cases(casebook, owner, sent.get("patient", ""), sent.get("lesion", ""))
        others = [case for case in lesion if case.id != before.id]
        person = before.person.model_copy(update=new)
        if said := another_lesion(before.lesion, person, others):
            raise AnotherLesion(joined(*said, text("book_facts_ask")))
    casebook.add_facts(owner, before.id, Patient(**new), version=version_of(sent))
    return joined(text("book_facts_saved"), text("book_facts_after"))


def other_cases(casebook: "Casebook", owner: str, patient: str, lesion: str) -> list[KeptCase]:
    """Return the cases of a lesion, oldest first; none where one of them cannot be read."""
    try:
        return casebook.cases(owner, patient, lesion)
    except UserError:  # a damaged row of another case keeps no new one out
        return []


def action_recorded(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> str:
    """Save what was done about a case; return what to say. Raises UserError."""
    kind, day, detail, name = (sent.get(one, "") for one in ("kind", "day", "detail", "who"))
    action = action_of(kind, day, detail, name, owner)
    doubt = note_doubt(action.detail, "done_doubt")
    if doubt and sent.get("no_person") != "yes":
        raise NoteDoubt(joined(doubt, text("done_doubt_do")))
    casebook.record_action(owner, sent.get("case", ""), action, version=version_of(sent))
    return joined(text("done_saved"), action.words, note_dated(action.detail))


def action_struck(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> str:
    """Strike out an entry of what was done; return what to say. Raises UserError."""
    place = sent.get("place", "")
    number = int(place) if place.isascii() and place.isdecimal() and len(place) < 10 else -1
    name, why = sent.get("who", ""), sent.get("why", "")
    if doubt := note_doubt(why, "done_doubt"):
        raise UserError(joined(doubt, text("done_strike_doubt")))
    casebook.strike_action(
        owner, sent.get("case", ""), number, version=version_of(sent), name=name, why=why
    )
    return text("done_struck_saved")


def version_of(sent: Mapping[str, str]) -> int:
    """Return which version of a case a form was made from; a form without one is refused."""
    text = sent.get("version", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
