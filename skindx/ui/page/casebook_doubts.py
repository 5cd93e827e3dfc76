"""What speaks against that two cases are of one person or one lesion, in sentences."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from skindx.casebook.case_names import is_elsewhere, side_named, site_named
from skindx.casebook.kept_case import KeptCase, PersonSeen
from skindx.diagnosis.case import Patient
from skindx.diagnosis.conclusion import LEAST_ALIKE, are_sure_of_others
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import Diagnosis
from skindx.texts.catalogue import joined, text, word
from skindx.ui.page.casebook_words import case_names

_LASTING = ("site", "laterality", "skin_type")


def differing_facts(first: Patient, last: Patient) -> list[tuple[str, str, str]]:
    """Return the facts that two photos of one lesion cannot both have, with both values."""
    pairs = [(name, getattr(first, name), getattr(last, name)) for name in _LASTING]
    return [
        (INTAKE[name].noun or name, word(str(one)), word(str(other)))
        for name, one, other in pairs
        if one is not None and other is not None and one != other
    ]


def another_person(one: PersonSeen, other: PersonSeen) -> list[str]:
    """Return in sentences what two cases of one pseudonym tell that no one person can have.

    The form asks for whole years, so that ages differ by the time between, give or take a year.
    """
    first, last = sorted((one, other), key=lambda seen: seen.day)
    said, sexes = [], [word(str(seen.facts.sex)) for seen in (first, last) if seen.facts.sex]
    if len(set(sexes)) > 1:
        sex = {"first": sexes[0], "last": sexes[1]}
        said.append(text("person_sex", before=first.day, after=last.day, **sex))
    young, old = first.facts.age, last.facts.age
    if young is None or old is None:
        return said
    years = (last.day - first.day).days / 365.25
    if abs(old - young - years) > 1:
        said.append(text("person_age", first=young, before=first.day, last=old, after=last.day))
    return said


def seen_in(case: KeptCase) -> PersonSeen:
    """Return what a case tells of the person."""
    return PersonSeen(case.person, case.photographed or case.taken.astimezone().date())


def another_lesion(lesion: str, patient: Patient, others: Sequence[KeptCase]) -> list[str]:
    """Return in sentences which facts contradict a lesion's name, or its `others`, oldest first."""
    differing = (differing_facts(case.person, patient) for case in reversed(others))
    said = [
        text("keep_differs", fact=fact, first=first, last=last)
        for fact, first, last in next(filter(None, differing), [])
    ]
    side, site = side_named(lesion), patient.site
    if side and patient.laterality not in (None, "midline", side):
        said.append(text("keep_side", lesion=lesion, side=word(str(patient.laterality))))
    if site and is_elsewhere(lesion, site):
        said.append(text("keep_place", lesion=lesion, place=word(site)))
    return said


def entries_differ(before: KeptCase, after: KeptCase, names: Mapping[str, str]) -> list[str]:
    """Return in sentences which entries of two cases of a lesion differ, or its name contradicts.

    `names` are those of the cases by their ids. It does not depend on how alike the photos look:
    two nevi of one patient may look the same.
    """
    cases = {"before": names[before.id], "after": names[after.id]}
    said = [
        text("book_differs", fact=fact, first=first, last=last, **cases)
        for fact, first, last in differing_facts(before.person, after.person)
    ]
    for case in (before, after):
        side, site = side_named(case.lesion), case.person.site
        other = case.person.laterality if side else None
        if other not in (None, "midline", side):
            values = {"fact": text("fact", name="side", value=word(str(other)))}
            said.append(text("book_name_differs", case=names[case.id], **values))
        if site and is_elsewhere(case.lesion, site):
            values = {"fact": text("fact", name="place", value=word(site))}
            said.append(text("book_name_differs", case=names[case.id], **values))
    return said


def unplaced(*cases: KeptCase) -> list[KeptCase]:
    """Return the cases of which neither a fact nor the name of the lesion gives a place."""
    return [case for case in cases if not (case.person.site or site_named(case.lesion))]


def unlike_words(told: Diagnosis, features: Sequence[bytes], others: Sequence[KeptCase]) -> str:
    """Return in sentences that a photo looks like another lesion than one of the `others`.

    They are oldest first; only those are compared that the patient agrees to comparing.
    """
    names = case_names(others)
    for case in reversed(others):
        agreed = "compare" in case.purposes
        if agreed and look_apart(case.diagnosis, case.features, told, features):
            return joined(text("keep_looks", case=names[case.id]), text("book_looks_changed"))
    return ""


def are_unlike(before: KeptCase | None, after: KeptCase | None) -> bool:
    """Tell whether the photos of two cases look like different lesions; False for one case."""
    if before is None or after is None:
        return False
    return look_apart(before.diagnosis, before.features, after.diagnosis, after.features)


def look_apart(
    earlier: Diagnosis, before: Sequence[bytes], later: Diagnosis, after: Sequence[bytes]
) -> bool:
    """Tell whether the photos of two cases look like different lesions.

    `before` and `after` are the cases' features. A later photo is compared with the earlier one
    that is most like it; or each case is sure of another class, as photos of one case may be.
    False where features are missing, or are not of one bundle.
    """
    digest = earlier.source.digest
    if not (before and after and digest) or digest != later.source.digest:
        return False
    cosines_LE = _unit(after) @ _unit(before).T
    return bool(cosines_LE.max(axis=1).min() < LEAST_ALIKE) or _differ(earlier, later)


def _unit(features: Sequence[bytes]) -> NDArray[np.float32]:
    rows_PD = np.stack([np.frombuffer(one, "<f2") for one in features]).astype(np.float32)
    lengths_P1 = np.linalg.norm(rows_PD, axis=1, keepdims=True)
    unit_PD: NDArray[np.float32] = rows_PD / np.maximum(lengths_P1, 1e-12)
    return unit_PD


def _differ(earlier: Diagnosis, later: Diagnosis) -> bool:
    """Tell whether two answers are each sure of another class, by the candidates they list."""
    listed = [{one.key: one.probability for one in case.candidates} for case in (earlier, later)]
    keys = sorted(listed[0].keys() | listed[1].keys())
    rows_2C = np.array([[one.get(key, 0.0) for key in keys] for one in listed])
    rest_21 = np.clip(1 - rows_2C.sum(axis=1, keepdims=True), 0, 1)
    return are_sure_of_others(np.hstack([rows_2C, rest_21]))
