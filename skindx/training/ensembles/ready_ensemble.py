"""An ensemble that is ready to be packed, and what its bundle is fitted on.

Validation fits the temperatures. A *unit* is what has one weight and one temperature: a member, or
all fold members of one kind.
Calibration fits the conformal sets, the thresholds of the urgent risk and the checks of photos;
the gallery, the fingerprints and the provenance say what it learned from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import sha256_file
from skindx.data.layout import MANIFEST
from skindx.data.loader.augment import photo_changer
from skindx.data.loader.settings import Augment
from skindx.data.manifest import COUNTED, Record, count_images, decoding_of, read_image, split_of
from skindx.data.origin import ImageOrigin, origin_of
from skindx.imaging.photo_gates import ModalityCheck, modality_features
from skindx.metrics import share_interval
from skindx.models.bundle.bundle import Bundle, DetectorParts, pack
from skindx.models.bundle.bundle_index import (
    CLASS_CALIBRATION,
    MANIFEST_SHA256,
    TRAINING_COUNTS,
    TRAINING_IMAGES,
    MemberSpec,
    calibration_classes,
    calibration_side,
)
from skindx.models.bundle.model_card import metadata_words
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.class_calibration import (
    CalibrationFit,
    ClassCalibration,
    fit_class_calibration,
    loss_gain,
)
from skindx.models.combination import (
    Combination,
    Rule,
    apply_temperature,
    combine,
    fit_temperature,
    log,
    pool,
)
from skindx.models.conformal import ALL, Conformal, fit_on_records
from skindx.models.embedded import EmbeddingsSpec
from skindx.models.embedding_index import make_embedding_index, plain_views, stratified
from skindx.models.ensemble import Ensemble, outputs_of_records
from skindx.models.fingerprints import Fingerprints, described
from skindx.models.metadata_head import (
    AnswerRules,
    Facts,
    MetadataSpec,
    fit_metadata,
    with_rules,
)
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import OodDetectorSettings
from skindx.models.ood.stored_check import CAP, OodCollector, OodPart
from skindx.models.urgent_risk import QUESTIONS, fit_risk_on_records
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.finished import State
from skindx.training.config.ensemble import Combiner, Mean, PackSettings
from skindx.training.ensembles.member_refs import Mask, out_of_fold_P
from skindx.training.tasks.open_sets import class_numbers

# U = units, N = images, C = classes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Evidence:
    """Raw log-probabilities of validation images, by units that did not train on them."""

    log_UNC: Floats
    truth_N: Ints
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """Everything that is fitted on validation; weights and temperatures are of units."""

    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float
    by_class: CalibrationFit

    def probabilities(self, log_UNC: Floats) -> Floats:
        """Return the ensemble's probabilities N x C for raw log-probabilities."""
        soft_UNC = soften(log_UNC, self.temperatures)
        return self.by_class.served(combine(soft_UNC, self.temperature, self.combination))


def fit(combiner: Combiner, evidence: Evidence) -> Fitted:
    """Fit the units' temperatures, then the ensemble's, then its calibration by class.

    Between the mean of probabilities and that of logarithms the log loss decides that images of
    other folds have after all of it: the first stays unless the second gains beyond chance.
    """
    temperatures = tuple(fit_temperature(log_NC, evidence.truth_N) for log_NC in evidence.log_UNC)
    several = len(temperatures) > 1
    rule: Rule = "vote"
    if isinstance(combiner, Mean):
        rule = "probability" if combiner.space == "auto" else combiner.space
    fitted = _fit_rule(rule if several else "probability", temperatures, evidence)
    if not (several and isinstance(combiner, Mean) and combiner.space == "auto"):
        return fitted
    other = _fit_rule("logit", temperatures, evidence)
    crossed = fitted.by_class.crossed_NC, other.by_class.crossed_NC
    if crossed[0] is None or crossed[1] is None:
        return fitted
    gain = loss_gain(crossed[1], crossed[0], evidence.truth_N, evidence.groups)
    return other if gain and gain.low > 0 else fitted


def _fit_rule(rule: Rule, temperatures: tuple[float, ...], evidence: Evidence) -> Fitted:
    combination = Combination(rule=rule)
    pooled_NC = pool(soften(evidence.log_UNC, temperatures), combination)
    temperature = fit_temperature(log(pooled_NC), evidence.truth_N)
    if len(temperatures) > 1 and temperature < 1 and not _borne_out(pooled_NC, evidence):
        temperature = 1.0
    combined_NC = apply_temperature(log(pooled_NC), temperature)
    by_class = fit_class_calibration(log(combined_NC), evidence.truth_N, evidence.groups)
    return Fitted(temperatures, combination, temperature, by_class)


def _borne_out(pooled_NC: Floats, evidence: Evidence) -> bool:
    """Return whether the images bear out that the members' mean is to be sharpened.

    Sharpened, an answer can be surer than the surest member. So the mean must be right more often
    than it says, also at the lower end of the exact 95 % interval over groups: few images that are
    all answered rightly are no evidence.
    """
    right_N = pooled_NC.argmax(axis=1) == evidence.truth_N
    least = share_interval(right_N, np.array(evidence.groups)).low
    return bool(least > pooled_NC.max(axis=1).mean())


def soften(log_UNC: Floats, temperatures: Sequence[float]) -> Floats:
    """Return calibrated probabilities U x N x C."""
    return np.stack(
        [apply_temperature(log_NC, t) for log_NC, t in zip(log_UNC, temperatures, strict=True)]
    )


_NAMES: dict[Rule, str] = {
    "probability": "mean of probabilities",
    "logit": "mean of logits",
    "vote": "majority vote",
}

# U = units, P = images of train and val, N = images to fit on, C = classes


@dataclass(frozen=True)
class Assembly:
    """How the members of an ensemble are to be packed."""

    members: tuple[str, ...]
    temperatures: tuple[float, ...]
    combination: Combination
    temperature: float
    combiner: str
    images: int
    groups: int
    members_of: dict[str, tuple[str, ...]]
    """The members of each unit."""
    fitted: Fitted
    classes: tuple[str, ...] = ()
    expected_C: Floats | None = None
    """What the members' recipes let expect of the biases of the calibration by class."""

    @property
    def by_class(self) -> ClassCalibration | None:
        """The calibration by class that is kept."""
        return self.fitted.by_class.kept

    def report(self) -> dict[str, Any]:
        """Return what RUN/ensemble.json holds; its keys are an interface."""
        weights = self.combination.weights or [1 / len(self.members)] * len(self.members)
        return {
            "chosen": self.combiner,
            "rule": self.combination.rule,
            "temperature": self.temperature,
            "calibration by class": self.fitted.by_class.report(self.classes, self.expected_C),
            "members": [
                {"name": name, "weight": weight, "temperature": temperature}
                for name, weight, temperature in zip(
                    self.members, weights, self.temperatures, strict=True
                )
            ],
            "fitted on": {"pictures": self.images, "groups": self.groups},
            "folds of one kind": [
                list(names) for names in self.members_of.values() if len(names) > 1
            ],
        }


def gather_evidence(
    units: Mapping[str, Mapping[str, Mask]],
    predicted: Mapping[str, Floats],
    truth_P: NDArray[np.int64],
    groups_P: Sequence[str],
) -> Evidence:
    """Return each unit's out-of-fold predictions of the images for which all units have some.

    `predicted` holds each member's raw log-probabilities of the images that it did not train on,
    in order. Where a unit has several members for an image, it predicts their mean probability.
    """
    chosen_P = out_of_fold_P(units)
    log_UNC = np.stack([_predictions(unit, predicted)[chosen_P] for unit in units.values()])
    groups = tuple(np.array(groups_P)[chosen_P].tolist())
    return Evidence(log_UNC, truth_P[chosen_P], groups)


def _predictions(unit: Mapping[str, Mask], predicted: Mapping[str, Floats]) -> Floats:
    if len(unit) == 1:  # to the bit what the member predicted
        ((name, mask_P),) = unit.items()
        log_PC = np.full((len(mask_P), predicted[name].shape[1]), np.nan)
        log_PC[mask_P] = predicted[name]
        return log_PC
    some = next(iter(unit))
    total_PC = np.full((len(unit[some]), predicted[some].shape[1]), -np.inf)
    for name, mask_P in unit.items():
        total_PC[mask_P] = np.logaddexp(total_PC[mask_P], predicted[name])
    count_P = np.sum(list(unit.values()), axis=0)
    mean_PC: Floats = total_PC - np.log(np.maximum(count_P, 1))[:, None]
    return mean_PC


def assemble(
    combiner: Combiner,
    evidence: Evidence,
    members_of: Mapping[str, Sequence[str]],
    classes: Sequence[str] = (),
    expected_C: Floats | None = None,
) -> Assembly:
    """Fit the temperatures of units and ensemble, and its calibration by class."""
    fitted = fit(combiner, evidence)
    names, weights, temperatures = _spread(fitted, members_of)
    even = np.allclose(weights, 1 / len(weights), rtol=0, atol=1e-9)
    return Assembly(
        members=names,
        temperatures=temperatures,
        combination=Combination(rule=fitted.combination.rule, weights=None if even else weights),
        temperature=fitted.temperature,
        combiner=_NAMES[fitted.combination.rule] if len(members_of) > 1 else "nothing to choose",
        images=len(evidence.truth_N),
        groups=len(set(evidence.groups)),
        members_of={unit: tuple(inside) for unit, inside in members_of.items()},
        fitted=fitted,
        classes=tuple(classes),
        expected_C=expected_C,
    )


def _spread(
    fitted: Fitted, members_of: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Weigh units alike, share each one's weight among its members, give them its temperature."""
    rows = [
        (name, 1 / len(members_of) / len(inside), temperature)
        for inside, temperature in zip(members_of.values(), fitted.temperatures, strict=True)
        for name in inside
    ]
    names, shares, temperatures = zip(*rows, strict=True)
    return names, shares, temperatures


# N = images, C = classes


def fit_facts(
    answers_NC: NDArray[np.float64], held: Sequence[Record], taxonomy: Taxonomy
) -> MetadataSpec | None:
    """Fit what age, sex and place change, on answers to images that nothing was trained on."""
    truth_N = class_numbers(held, taxonomy.keys)
    urgent_C = np.array([one.urgency == "urgent" for one in taxonomy.classes])
    groups = tuple(record.group for record in held)
    facts = [Facts.from_record(record) for record in held]
    return fit_metadata(answers_NC, truth_N, facts, groups, urgent_C=urgent_C)


@dataclass(frozen=True)
class ReadyEnsemble:
    """An ensemble before it is packed."""

    ensemble: Ensemble
    """The ensemble as it will be served."""
    members: Sequence[tuple[MemberSpec, State]]
    learned: Sequence[Record]
    """The images that at least one member trained on."""
    metadata: MetadataSpec | None
    trunks: Mapping[str, Mapping[str, Tensor]]
    """Weights that members share, by their key."""
    started_from: Sequence[ImageOrigin] = ()
    """What the networks learned from whose weights members started from."""
    by_class: str = ""
    """What the calibration by class gains, in sentences for the card."""


def pack_ensemble(
    path: Path,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    ready: ReadyEnsemble,
    *,
    name: str,
    provenance: Mapping[str, Any],
    detector: DetectorParts | None = None,
    embeddings: EmbeddingsSpec | None = None,
    ood: Sequence[OodDetectorSettings] = DEFAULT,
    changed: Augment | None = None,
    use: UseLimits | None = None,
    stored: PackSettings | None = None,
) -> Bundle:
    """Fit what needs the calibration split, and pack it all with what is known of the images."""
    ensemble, learned, metadata = ready.ensemble, ready.learned, ready.metadata
    stored = stored or PackSettings()
    made_from = [record for record in records if record.split != "test"]
    fitted_on = stratified(learned, CAP)
    collector = OodCollector(ensemble, {record.sha256 for record in fitted_on}, ood)
    gallery = None
    if stored.gallery:
        gallery = make_embedding_index(ensemble, dataset, learned, also=collector.train)
        shown = f"{gallery.spec.shown} may be shown by their licences and people's decisions"
        print(f"gallery of {len(gallery)} training images; {shown}")
    changes = ([] if stored.gallery else [None]) + ([photo_changer(changed)] if changed else [])
    for change in changes:
        for seen in outputs_of_records(plain_views(ensemble), dataset, fitted_on, change=change):
            collector.train(*seen)
    print(ready.by_class)
    conformal, check, rules = fit_on_calibration(
        ensemble, dataset, records, taxonomy, collector, metadata=metadata
    )
    if check and stored.ood_features == "calibration":
        check = check.of_calibration()
    print(f"age, sex and place on the body: {metadata_words(rules.get('metadata'))}")
    return pack(
        path,
        name,
        taxonomy,
        ready.members,
        temperature=ensemble.temperature,
        combination=ensemble.combination,
        class_calibration=ensemble.class_calibration,
        detector=detector,
        conformal=conformal,
        **rules,
        gallery=gallery,
        ood=check,
        modality=fit_modality(dataset, records),
        provenance={
            "dataset": dataset.resolve().name,
            MANIFEST_SHA256: sha256_file(dataset / MANIFEST),
            TRAINING_IMAGES: len(learned),
            TRAINING_COUNTS: {
                field: counts for field, counts in count_images(learned).items() if field in COUNTED
            },
            **calibration_side(records),
            **calibration_classes(records),
            CLASS_CALIBRATION: ready.by_class,
            **provenance,
        },
        seen=records,
        use=use,
        fingerprints=Fingerprints.from_images(described(dataset, made_from)),
        images=reduce(ImageOrigin.joined, ready.started_from, origin_of(dataset, learned)),
        decoding=decoding_of(dataset),
        embeddings=embeddings,
        trunks=ready.trunks,
    )


def fit_on_calibration(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    taxonomy: Taxonomy,
    collector: OodCollector,
    *,
    metadata: MetadataSpec | None = None,
) -> tuple[Conformal | None, OodPart | None, dict[str, Any]]:
    """Fit conformal sets, OOD check and urgent risk on the calibration split, in one pass over it.

    Nothing else looks at that split. No part, and a line that says so, where it has too few images.
    The rules of answers with age, sex and place are fitted too, where there is `metadata`.
    """
    held = split_of(records, "calibration")
    if not held:
        print(
            "no conformal sets, no urgent-risk threshold and no out-of-distribution check: the "
            "dataset has no calibration images to fit them on"
        )
        bare = metadata and with_rules(metadata, [], taxonomy, {}, AnswerRules())
        return None, None, {"metadata": bare} if bare else {}
    batches = []
    for batch, images, output in outputs_of_records(ensemble, dataset, held):
        batches.append(output.probabilities_NC)
        collector.calibration(batch, images, output)
    ood = collector.part()  # what could not be fitted is said at the end
    probabilities_NC = np.concatenate(batches)
    rules: dict[str, Any] = {
        question: fit_risk_on_records(probabilities_NC, held, taxonomy, question)
        for question in QUESTIONS
    }
    if risk := rules["urgent_risk"]:
        rates = ", ".join(f"{level.miss_rate:.0%}" for level in risk.levels)
        print(
            f"urgent-risk thresholds for miss rates of {rates}, fitted on {risk.lesions[ALL]} "
            "calibration lesions with an urgent condition"
        )
    conformal = fit_on_records(probabilities_NC, held, taxonomy)
    if metadata:
        plain, answers = AnswerRules(conformal=conformal, **rules), {"": probabilities_NC}
        rules["metadata"] = with_rules(metadata, held, taxonomy, answers, plain)
    return conformal, ood, rules


def fit_modality(dataset: Path, records: Sequence[Record]) -> ModalityCheck | None:
    """Fit the check for photos of the other modality on the calibration split.

    None, and a line where that is no matter of course, for a dataset without one modality.
    """
    held = split_of(records, "calibration")
    kind = origin_of(dataset, held).modality
    if kind in {"", "mixed"} or not held:
        return None
    features_NF = np.stack([modality_features(read_image(dataset, record)) for record in held])
    check = ModalityCheck.fit(kind, features_NF)
    if check is None:
        print(
            f"no check for photos that are not {kind}: these {len(held)} calibration images are "
            "too few, or look too much like the others"
        )
    return check
