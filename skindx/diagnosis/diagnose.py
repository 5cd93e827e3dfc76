"""From cases to answers: photos of all cases go through the networks together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, with_file_facts
from skindx.diagnosis.conclusion import Conclusion, conclude
from skindx.diagnosis.photo_checks import (
    MAX_BYTES,
    CheckedPhoto,
    Gate,
    Refusal,
    Refused,
    WideRule,
    check_photos,
    read_photo,
    small_view,
    view_jpeg,
)
from skindx.diagnosis.record import CaseAnswer, PhotoView, Similar, UsedFacts
from skindx.diagnosis.record_assembly import (
    assemble,
    at_prevalence,
    bundle_version,
    photo_of,
    used_facts,
    with_cut,
)
from skindx.models.ensemble import EnsembleOutput, Prediction
from skindx.models.ood.feature_extraction import p_values_of
from skindx.texts.catalogue import joined, text

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


SHOWN = 6

# P = photos of a case, D = dimensions


def similar_cases(
    predictor: "Predictor", embeddings_PD: NDArray[np.float32], photos: Sequence[CheckedPhoto]
) -> tuple[tuple[Similar, ...], tuple[bytes, ...]]:
    """Return the nearest cases to the mean of a case's photos, and a JPEG of each, or b"".

    A photo that the gallery holds is no case that is similar to itself, nor is the same lesion.
    """
    if predictor.gallery is None:
        return (), ()
    mean_D = embeddings_PD.mean(axis=0)
    mean_D = (mean_D / max(float(np.linalg.norm(mean_D)), 1e-12)).astype(np.float32)
    near = predictor.gallery.nearest(mean_D, SHOWN, [seen.opened.sha256 for seen in photos])
    names = {skin_class.key: skin_class.name for skin_class in predictor.taxonomy.classes}
    cases = tuple(
        Similar(
            key=neighbour.row.label,
            name=names.get(neighbour.row.label, neighbour.row.label),
            confirmed_by=neighbour.row.confirmed_by,
            similarity=neighbour.cosine,
            sha256=neighbour.row.sha256,
            licence=neighbour.row.licence,
            credit=neighbour.row.attribution or neighbour.row.creator,
            page_url=neighbour.row.page_url,
        )
        for neighbour in near
    )
    return cases, tuple(neighbour.thumbnail for neighbour in near)


__all__ = ["MAX_BYTES", "answer", "answer_many", "bundle_version", "read_photo"]

# P = photos of a case, C = classes, M = members

_OTHER_MODALITY = {
    "dermoscopic": ("refused_not_dermoscopic", "refused_not_dermoscopic_do"),
    "clinical": ("refused_not_clinical", "refused_not_clinical_do"),
}


@dataclass(frozen=True)
class CheckedCase:
    """A case whose photos the networks will see, and those of them that a gate refused."""

    case: Case
    passed: dict[int, CheckedPhoto]
    """By their place in the case."""
    refused: Sequence[Refusal] = ()


@dataclass(frozen=True)
class ConcludedCase:
    """A case after the networks; `places` are those of its photos among all of the batch."""

    case: Case

    photos: tuple[CheckedPhoto, ...]
    places: slice
    predictions: Sequence[Prediction]
    members_MC: NDArray[np.float64]
    conclusion: Conclusion
    ood_p_value: float | None
    deciding: int
    """Place in the taxonomy of the class that decides the next step, or else of the likeliest."""
    used: UsedFacts | None = None


def answer(predictor: "Predictor", case: Case) -> CaseAnswer:
    """Return the answer to a case.

    Raises Refused for a photo that is refused, and UserError for a damaged bundle.
    """
    (answered,) = answer_many(predictor, [case], apart=True)
    if isinstance(answered, UserError):
        raise answered
    return answered


Observer = Callable[[Sequence[NDArray[np.uint8]], EnsembleOutput, Sequence[int]], None]
"""Takes decoded photos, what the networks made of them, and the place of each case's first one."""


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
    checked = [check_case(predictor, case, apart=apart) for case in cases]
    concluded, output = conclude_cases(predictor, checked)
    if output is None:
        return [one for one in concluded if isinstance(one, UserError)]
    heats = _heat_pngs(
        predictor,
        output,
        {n: one for n, one in enumerate(concluded) if isinstance(one, ConcludedCase)},
    )
    answers = [
        one if isinstance(one, UserError) else _answer(predictor, one, output, heats[n])
        for n, one in enumerate(concluded)
    ]
    if observe:
        seen = [one.passed for one in checked if isinstance(one, CheckedCase)]
        first = np.cumsum([0, *(len(photos) for photos in seen[:-1])])
        pixels = [photo.opened.pixels_HWC for photos in seen for photo in photos.values()]
        observe(pixels, output, first.tolist())
    return answers


def check_case(predictor: "Predictor", case: Case, *, apart: bool = False) -> CheckedCase | Refused:
    """Decode a case's photos and look at their quality; threads may do it side by side."""
    passed, refused = check_photos(
        case, needed_side(predictor), predictor.least_side, predictor.decoding, apart=apart
    )
    if predictor.bundle.images.modality == "dermoscopic":
        refused = [
            replace(one, message=joined(one.message, text("refused_take_dermoscopic")))
            if one.gate == "no-skin"
            else one
            for one in refused
        ]
    try:
        headers = [photo.opened.facts for photo in passed.values() if photo.opened.facts]
        case = with_file_facts(case, headers)
    except UserError as error:
        return Refused("unreadable", str(error))
    groups = predictor.gallery.groups if predictor.gallery else {}
    for place, photo in passed.items():
        if photo.opened.sha256 in groups:
            passed[place] = replace(photo, remarks=(text("remark_learned"), *photo.remarks))
    if refused and not (passed and predictor.ood):
        return Refused.of(refused, len(case.photos))
    return CheckedCase(case, passed, refused)  # the networks may refuse another of its photos


def conclude_cases(
    predictor: "Predictor", cases: Sequence[CheckedCase | UserError]
) -> tuple[list[ConcludedCase | UserError], EnsembleOutput | None]:
    """Return each case's conclusion, or why it has none, and what the networks made of all photos.

    A refused case stays as it is; None: no photo is left to look at.
    """
    pixels = [
        photo.opened.pixels_HWC
        for one in cases
        if isinstance(one, CheckedCase)
        for photo in one.passed.values()
    ]
    if not pixels:
        return [one for one in cases if isinstance(one, UserError)], None
    predictions, output = predictor.predict_with_features(pixels)
    concluded: list[ConcludedCase | UserError] = []
    start = 0
    for one in cases:
        if isinstance(one, UserError):
            concluded.append(one)
            continue
        places = slice(start, start := start + len(one.passed))
        try:
            concluded.append(_conclude(predictor, one, places, predictions[places], output))
        except UserError as error:
            concluded.append(error)
    return concluded, output


def needed_side(predictor: "Predictor") -> int | None:
    """Return the pixels of a photo's shorter side that its judges need; None: as it is.

    The view around a small box takes what there is, so a photo is then never made smaller.
    """
    if predictor.fusion and predictor.fusion.weight and predictor.has_detector:
        return None
    sides = [member.preprocess.margin_size for member in predictor.ensemble.members]
    if predictor.detector:
        sides.append(predictor.detector.spec.size)
    return max(sides)


def _out_of_distribution(
    predictor: "Predictor",
    output: EnsembleOutput,
    places: slice,
    photos: Mapping[int, CheckedPhoto],
) -> tuple[float | None, list[int]]:
    """Return the least p-value of a case's photos, and which of them are out of distribution.

    None for a bundle without a check.
    """
    ood = predictor.ood
    if ood is None:
        return None, []
    pixels = [seen.opened.pixels_HWC for seen in photos.values()]
    p_values_P = p_values_of(ood, predictor.ensemble, pixels, output, places.start)
    out = [n for n, p_value in zip(photos, p_values_P, strict=True) if ood.is_out(float(p_value))]
    return float(p_values_P.min()), out


def _conclude(
    predictor: "Predictor",
    checked: CheckedCase,
    places: slice,
    predictions: Sequence[Prediction],
    output: EnsembleOutput,
) -> ConcludedCase:
    """Combine the predictions of a case's photos.

    Raises Refused for the photos refused before, those out of distribution and those of the other
    modality, UserError for a bundle without sense.
    """
    case, photos, refused = checked.case, checked.passed, checked.refused
    probabilities_PC = np.stack([prediction.probabilities_C for prediction in predictions])
    members_MPC = np.stack(
        [prediction.member_probabilities_MC for prediction in predictions], axis=1
    )
    if not (np.isfinite(probabilities_PC).all() and np.isfinite(members_MPC).all()):
        raise UserError(
            f"bundle {predictor.bundle.path} gives no probabilities for this photo; its weights "
            "are damaged, train and pack it again."
        )
    ood_p_value, out = _out_of_distribution(predictor, output, places, photos)
    unlike_all = joined(text("refused_unlike"), text("refused_unlike_do"))
    if predictor.bundle.images.modality == "dermoscopic":
        unlike_all = joined(unlike_all, text("refused_take_dermoscopic"))
    why: dict[int, tuple[Gate, str]] = dict.fromkeys(out, ("unfamiliar", unlike_all))
    if modality := predictor.modality:
        what, todo = _OTHER_MODALITY[modality.kind]
        reason: tuple[Gate, str] = ("modality", joined(text(what), text(todo)))
        for n, seen in photos.items():
            if modality.refuses(seen.opened.pixels_HWC):
                why[n] = reason
    if refused or why:
        by_photo = dict(zip(photos, predictions, strict=True))
        unlike = []
        for n, (gate, message) in why.items():
            seen_photo = photo_of(predictor, photos[n], by_photo[n])
            count = WideRule().wide({n: seen_photo}).get(n)
            afar = text("refused_afar", count=count) if count else ""
            shown = small_view(case.photos[n], photos[n].opened.pixels_HWC)
            scan = joined(afar, text("refused_afar_do")) if count else ""
            unlike.append(Refusal(n, gate, joined(message, scan), shown, seen_photo))
        raise Refused.of([*refused, *unlike], len(case.photos))
    ruled, known_PC = predictor.knowing(case.patient.facts, probabilities_PC)
    conclusion = conclude(
        ruled, known_PC, members_MPC, skin_type=case.patient.skin_type, ood_p_value=ood_p_value
    )
    conclusion = at_prevalence(conclusion, predictor)
    used = used_facts(ruled, probabilities_PC.mean(axis=0), conclusion)
    key = conclusion.next_step.decided_by or conclusion.ranked[0][0].key
    deciding = predictor.taxonomy.keys.index(key)
    members_MC = members_MPC.mean(axis=1)
    if predictor.prevalence:
        members_MC = predictor.prevalence.correct(members_MC)
    seen_photos = tuple(
        with_cut(predictor, photo, prediction)
        for photo, prediction in zip(photos.values(), predictions, strict=True)
    )
    return ConcludedCase(
        case, seen_photos, places, predictions, members_MC, conclusion, ood_p_value, deciding, used
    )


def _heat_pngs(
    predictor: "Predictor", output: EnsembleOutput, concluded: Mapping[int, ConcludedCase]
) -> dict[int, list[bytes]]:
    """Return the heat map of each photo for the deciding condition as PNG, b"" where none is.

    Nor is there one where the model abstains: it would explain a name that is no answer.
    """
    from skindx.diagnosis.heat_maps import heat_maps, heat_png

    heats = {n: [b""] * len(case.photos) for n, case in concluded.items()}
    for n, case in concluded.items():
        if case.conclusion.abstained:
            continue
        for place, seen in enumerate(case.photos):  # one by one: see `Member._passes`
            at = case.places.start + place
            maps = [map_[at : at + 1] for map_ in output.maps]
            pixels = seen.opened.pixels_HWC
            (heat,) = heat_maps(predictor.ensemble, maps, [case.deciding], [pixels])
            heats[n][place] = b"" if heat is None else heat_png(heat)
    return heats


def _answer(
    predictor: "Predictor", concluded: ConcludedCase, output: EnsembleOutput, heats: Sequence[bytes]
) -> CaseAnswer:
    # Labels of near images would name what the model does not know.
    similar, thumbnails = (
        ((), ())
        if concluded.conclusion.abstained
        else similar_cases(predictor, output.embeddings_ND[concluded.places], concluded.photos)
    )
    pairs = zip(concluded.photos, concluded.predictions, strict=True)
    diagnosis = assemble(
        predictor,
        concluded.case.patient,
        tuple(photo_of(predictor, seen, prediction) for seen, prediction in pairs),
        concluded.conclusion,
        concluded.members_MC,
        ood_p_value=concluded.ood_p_value,
        used=concluded.used,
        similar=similar,
        has_heat=any(heats),
    )
    views = tuple(
        PhotoView(view_jpeg(seen.opened.pixels_HWC), heat)
        for seen, heat in zip(concluded.photos, heats, strict=True)
    )
    return CaseAnswer(diagnosis, views, thumbnails)
