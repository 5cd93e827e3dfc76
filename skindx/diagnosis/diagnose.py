"""Cases become answers: photos of all cases go through the networks together.

Decode → gates → networks → gates → conclusion → record: each stage takes a value, returns one and
is left. The texts of an answer are written from its record, by `answer_texts`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.diagnosis.bundle_statement import BundleStatement
from skindx.diagnosis.case import Case
from skindx.diagnosis.checklist_advice import unanswered_step
from skindx.diagnosis.conclusion import CaseConclusion, conclude_case
from skindx.diagnosis.network_gates import gate_case
from skindx.diagnosis.photo_checks import CheckedCase, Refusal, Refused, check_case
from skindx.diagnosis.record import CaseAnswer, Photo
from skindx.diagnosis.record_assembly import assemble
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.ensemble import EnsembleOutput
from skindx.texts.catalogue import speaking

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import CaseOutput, Predictor


@dataclass(frozen=True)
class ConcludedCase:
    """A case after all stages but the last: no photo of it is refused."""

    checked: CheckedCase
    output: "CaseOutput"
    photos: tuple[Photo, ...]
    drawn: CaseConclusion
    stated: BundleStatement
    """What each answer of the bundle states, in the language of the case."""
    said: tuple[int, ...]
    """Photos, from 0, that pass because a person says how they were taken."""


Observer = Callable[[Sequence[NDArray[np.uint8]], EnsembleOutput, Sequence[int]], None]
"""Takes decoded photos, what the networks made of them, and the place of each case's first one."""


def answer(predictor: "Predictor", case: Case) -> CaseAnswer:
    """Return the answer to a case.

    Raises Refused for a photo that is refused, and UserError for a damaged bundle.
    """
    (answered,) = answer_many(predictor, [case], apart=True)
    if isinstance(answered, UserError):
        raise answered
    return answered


def answer_many(
    predictor: "Predictor",
    cases: Sequence[Case],
    observe: Observer | None = None,
    *,
    apart: bool = False,
) -> list[CaseAnswer | UserError]:
    """Return each case's answer, or why it has none; no answer depends on the other cases.

    `observe` is called last: photos that the networks refused count, those of other gates do not.
    `apart` is as `open_photo` has it.
    """
    checked = [_checked(predictor, case, apart=apart) for case in cases]
    concluded, output = conclude_cases(predictor, checked)
    answers = [
        one if isinstance(one, UserError) else _assembled(predictor, one) for one in concluded
    ]
    if observe and output:
        seen = [one.passed for one in checked if _is_seen(one, predictor)]
        first = np.cumsum([0, *(len(photos) for photos in seen[:-1])])
        pixels = [photo.decoded.pixels_HWC for photos in seen for photo in photos.values()]
        observe(pixels, output, first.tolist())
    return answers


def _checked(predictor: "Predictor", case: Case, *, apart: bool) -> CheckedCase | UserError:
    with speaking(case.language):
        return check_case(case, predictor.needs, apart=apart)


def _assembled(predictor: "Predictor", one: ConcludedCase) -> CaseAnswer:
    with speaking(one.checked.case.language):
        parts = one.checked, one.photos, one.output, one.drawn
        return assemble(predictor, *parts, stated=one.stated, said=one.said)


def conclude_cases(
    predictor: "Predictor", cases: Sequence[CheckedCase | UserError]
) -> tuple[list[ConcludedCase | UserError], EnsembleOutput | None]:
    """Return each case's conclusion, or why it has none, and what the networks made of all photos.

    None: no photo is left to look at.
    """
    seen = [one for one in cases if _is_seen(one, predictor)]
    outputs, output = predictor.see(seen) if seen else ([], None)
    use, stated = predictor.use, {}
    for language in {one.case.language for one in seen}:
        with speaking(language):
            stated[language] = predictor.statement
    by_place = iter(outputs)
    concluded: list[ConcludedCase | UserError] = []
    for one in cases:
        if isinstance(one, UserError):
            concluded.append(one)
        else:
            with speaking(one.case.language):
                concluded.append(
                    _concluded(predictor, one, next(by_place), stated[one.case.language], use)
                    if _is_seen(one, predictor)
                    else _refused(one.refused, one.case)
                )
    return concluded, output


def _is_seen(checked: CheckedCase | UserError, predictor: "Predictor") -> TypeGuard[CheckedCase]:
    """Tell whether the networks see a case: they may refuse another photo beside a refused one."""
    if isinstance(checked, UserError):
        return False
    return not checked.refused or bool(checked.passed and predictor.ood)


def _refused(refusals: Sequence[Refusal], case: Case) -> Refused:
    """Return the refusal of a case, with its next step where that is more than each refusal's."""
    return Refused.from_photos(refusals, len(case.photos), unanswered_step(case.patient).text)


def _concluded(
    predictor: "Predictor",
    checked: CheckedCase,
    output: "CaseOutput | UserError",
    stated: BundleStatement,
    use: UseLimits | None,
) -> ConcludedCase | UserError:
    """Return the conclusion on a case that the networks saw, or why it has none."""
    if isinstance(output, UserError):
        return output
    gated = gate_case(predictor.gates, checked, output.predictions, output.p_values_P)
    if gated.refused:
        return _refused(gated.refused, checked.case)
    patient = checked.case.patient
    facts = patient.age, patient.site, patient.skin_type
    drawn = conclude_case(
        output.rules,
        output.probabilities_PC,
        output.alone_PC,
        output.members_MPC,
        skin_type=patient.skin_type,
        beyond=use.beyond_text(*facts) if use else "",
        ood_p_value=None if output.p_values_P is None else float(output.p_values_P.min()),
    )
    return ConcludedCase(checked, output, gated.photos, drawn, stated, gated.said)
