"""What every answer of a bundle states alike: its source, limits and evaluation, made once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from skindx.diagnosis.advice_figures import (
    advice_errors,
    confused_with,
    measured_sets,
    modality_said,
    refused_urgent,
)
from skindx.diagnosis.record import Source, notice
from skindx.diagnosis.record_figures import AdviceErrors, Confused, MeasuredSets, ModalitySaid
from skindx.diagnosis.scope import cannot_reassure, known_names
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import CARD, EXPORTS, METRICS
from skindx.models.bundle.model_card import not_useful_yet
from skindx.models.combination import Prevalence
from skindx.models.urgent_risk import UrgentRiskRule
from skindx.taxonomy import unknown_to, urgent_known
from skindx.texts.catalogue import joined, spoken, text


class ServedBundle(Protocol):
    """A loaded bundle with what its operator chose, as far as a statement needs it."""

    @property
    def bundle(self) -> Bundle: ...
    @property
    def backend(self) -> str: ...
    @property
    def prevalence(self) -> Prevalence | None: ...
    @property
    def miss_rate(self) -> float | None: ...
    @property
    def urgent_risk(self) -> UrgentRiskRule | None: ...
    @property
    def soon_risk(self) -> UrgentRiskRule | None: ...
    @property
    def calibration_mix(self) -> dict[str, int] | None: ...
    @property
    def metrics(self) -> dict[str, Any] | None: ...
    @property
    def no_sets(self) -> str: ...
    @property
    def no_urgent_risk(self) -> str: ...


@dataclass(frozen=True)
class BundleStatement:
    """The fields of a record that do not depend on the photos; `Diagnosis` describes them."""

    language: str
    """That of the sentences."""
    notice: str
    source: Source
    not_useful: tuple[str, ...]
    advice: AdviceErrors | None
    """Both errors of the advice, which hold for answers by photos alone."""
    sets: MeasuredSets | None
    """What the evaluation measured of the sets, likewise."""
    no_promise: str
    no_urgent_risk: str
    known: tuple[str, ...]
    unknown_urgent: tuple[str, ...]
    confused: Mapping[str, Confused]
    """Class -> how often images of urgent conditions got it as their likeliest, where measured."""
    no_wait: str
    """Why no answer may give time to wait, in sentences; empty where it may."""
    prevalence: Mapping[str, float] | None
    mix: str
    knows_urgent: bool
    refused_urgent: str
    """How many urgent images the model refused, in a sentence; empty where nobody counted."""
    said: ModalitySaid | None
    """Errors for photos that the check of modality refuses; None: the bundle has no such check."""

    @classmethod
    def from_bundle(cls, served: ServedBundle) -> Self:
        """Return what each answer of a bundle states."""
        bundle, classes = served.bundle, served.bundle.taxonomy.classes
        return cls(
            language=spoken(),
            notice=notice(),
            source=source_of(bundle, served.backend),
            not_useful=not_useful_yet(bundle.spec, classes, served.metrics),
            advice=measured_advice(served),
            sets=measured_sets(served.metrics),
            no_promise=served.no_sets,
            no_urgent_risk=served.no_urgent_risk,
            known=known_names(classes),
            unknown_urgent=tuple(condition.name for condition in unknown_to(classes)),
            confused={
                skin_class.key: confused
                for skin_class in classes
                if (confused := confused_with(served.metrics, skin_class.key))
            },
            no_wait=cannot_reassure(classes),
            prevalence=shown_prevalence(served),
            mix=mix_text(served),
            knows_urgent=urgent_known(classes),
            refused_urgent=refused_urgent(served.metrics),
            said=measured_modality(served),
        )


def source_of(bundle: Bundle, backend: str) -> Source:
    """Return the record of the bundle that answers."""
    temperatures = (
        bundle.spec.temperature,
        *(member.temperature for member in bundle.spec.members),
    )
    return Source(
        name=bundle.spec.name,
        created=bundle.spec.created,
        version=bundle_version(bundle),
        digest=bundle.digest,
        evaluation=bundle.evaluation,
        backend=backend,
        calibrated=bool(bundle.spec.class_calibration) or any(t != 1 for t in temperatures),
        by_class=bundle.spec.class_calibration is not None,
        taxonomy=bundle.taxonomy.title,
        review=bundle.taxonomy.review_note,
        learned_from=bundle.warning,
        use=bundle.spec.use,
        modality=bundle.images.modality,
        expects=bundle.images.expects,
        adapted=bundle.spec.adapted.words if bundle.spec.adapted else "",
    )


def bundle_version(bundle: Bundle) -> str:
    """Return a SHA-256 over everything that decides an answer: weights, settings, taxonomy.

    Exports are the same weights again, checked to answer alike; a record names its backend.
    """
    files = {
        name: hash_
        for name, hash_ in bundle.spec.files.items()
        if name not in (METRICS, CARD) and not name.startswith(f"{EXPORTS}/")
    }
    deciding = bundle.spec.model_copy(update={"files": files, **dict.fromkeys(_MEASURED)})
    # A bundle of an older version lacks these; its version does not change when they stay empty.
    unset = {name for name in _ADDED_LATER if getattr(deciding, name) is None}
    return hashlib.sha256(deciding.model_dump_json(exclude=unset).encode()).hexdigest()


_MEASURED = ("detector_recall", "detector_images")
"""What was measured of the detector, and on what, decides no answer."""
_ADDED_LATER = ("images", "metadata", "ood", "urgent_risk", "whole_urgent_risk", *_MEASURED)


def shown_prevalence(served: ServedBundle) -> dict[str, float] | None:
    """Return the share of each condition that shown probabilities hold for; None: not known."""
    if served.prevalence:
        return dict(zip(served.bundle.taxonomy.keys, served.prevalence.shares_C, strict=True))
    counts = served.calibration_mix
    if counts is None:
        return None
    return {key: count / sum(counts.values()) for key, count in counts.items()}


def mix_text(served: ServedBundle) -> str:
    """Return which mix of diseases the shown probabilities hold for, in sentences."""
    shares = shown_prevalence(served)
    if served.prevalence:
        risky = urgent_known(served.bundle.taxonomy.classes)
        return joined(
            text("mix_given", shares=_listed(served, shares or {})),
            text("mix_all_uncorrected" if risky else "mix_set_uncorrected"),
        )
    if shares is None:
        return joined(text("mix_unnamed"), text("mix_elsewhere"))
    key = "mix_local" if served.bundle.spec.adapted else "mix_calibration"
    return joined(text(key, shares=_listed(served, shares)), text("mix_elsewhere"))


def measured_advice(served: ServedBundle) -> AdviceErrors | None:
    """Return both errors of the advice, with predictive values at the operator's prevalence."""
    given, rule = None, served.urgent_risk
    if served.prevalence:
        shares = zip(served.bundle.taxonomy.classes, served.prevalence.shares_C, strict=True)
        given = min(float(sum(share for one, share in shares if one.urgency == "urgent")), 1.0)
    miss_rate = rule.level(served.miss_rate).miss_rate if rule else None
    soon = served.soon_risk
    soon_rate = soon.level(served.miss_rate).miss_rate if soon else None
    return advice_errors(served.metrics, miss_rate, given, soon_rate)


def measured_modality(served: ServedBundle) -> ModalitySaid | None:
    """Return how often answers to photos err that the check of modality alone refuses."""
    check, rule = served.bundle.spec.modality, served.urgent_risk
    miss_rate = rule.level(served.miss_rate).miss_rate if rule else None
    return modality_said(check.kind, served.metrics, miss_rate) if check else None


def _listed(served: ServedBundle, shares: dict[str, float]) -> list[tuple[str, float]]:
    names = {skin_class.key: skin_class.name for skin_class in served.bundle.taxonomy.classes}
    return sorted(((names[key], share) for key, share in shares.items()), key=lambda row: -row[1])
