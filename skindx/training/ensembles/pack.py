"""Finished members and detector become RUN/bundle.

Everything is fitted on images that none of the members trained on, and never on calibration or
test. Without folds these are the validation split. The fold members of one kind together have
out-of-fold predictions for every image of train and val: each image is predicted by the member
that did not see it. Weights and temperature are fitted to these predictions as if they came from
one member. The bundle serves the mean of the folds, which is never more confident than that, so
the ensemble's temperature errs towards doubt.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.untrusted import read_json
from skindx.data.loader.batches import learning, partition
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.models.bundle.bundle import (
    Bundle,
    open_bundle,
)
from skindx.models.bundle.bundle_changes import add_provenance, set_fusion
from skindx.models.bundle.bundle_index import (
    FOLD_TRAINED_IMAGES,
    PACKED_FROM,
    MemberSpec,
    origin_beside,
    provenance_value,
)
from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import build_classifier, check_weights, fitted_network
from skindx.models.combination import Combination, FusionSpec, assist, box_crops, fit_weight
from skindx.models.detector import Detector
from skindx.models.ensemble import Ensemble, Member, predict_members, share_trunks
from skindx.models.metadata_head import (
    AnswerRules,
    with_rules,
)
from skindx.models.urgent_risk import (
    QUESTIONS,
)
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.finished import (
    VALIDATION,
    WEIGHTS,
    FinishedMember,
    State,
    in_half_precision,
    load_member,
    member_folder,
    packed_origin,
    packed_parts,
)
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.ensembles.member_refs import (
    Mask,
    MemberRef,
    member_refs,
    out_of_fold_P,
    packed_bundle,
    packing_fingerprint,
    units,
)
from skindx.training.ensembles.ready_ensemble import (
    ReadyEnsemble,
    assemble,
    fit_facts,
    gather_evidence,
    pack_ensemble,
)
from skindx.training.parallel.mesh import resolve_accelerator
from skindx.training.tasks.heads_job import load_trunk
from skindx.training.tasks.open_sets import class_numbers

# Trained members, loaded and ready to predict and to be packed.

# N = images, C = classes


# P = images of train and val, in manifest order; N = those held out of a training; C = classes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EnsemblePart:
    """One network of the ensemble before it is packed."""

    name: str
    member: MemberSettings
    finished: FinishedMember
    exact: bool
    """Whether its stored log-probabilities are those that it serves."""
    trained: State | None = None
    """Weights before they were rounded to half precision; None: they were not rounded here."""


@dataclass(frozen=True)
class EnsembleBuilder:
    """Loads members, predicts and makes the ensemble of them."""

    run: Path
    dataset: Path
    settings: TrainSettings
    taxonomy: Taxonomy
    records: Sequence[Record]
    device: str

    @property
    def images(self) -> list[Record]:
        """The images of train and val."""
        return learning(self.records)

    def parts(self, wanted: Sequence[str]) -> list[EnsemblePart]:
        """Return the networks of these names."""
        trained = member_refs(self.run, self.settings)
        return [self._trained(trained[name]) for name in wanted]

    def predict(self, part: EnsemblePart, held_P: Mask) -> Floats:
        """Return raw log-probabilities N x C of the images it did not train on, as it serves."""
        if part.exact:
            return part.finished.validation_NC
        member = self._member(part.member, part.finished.state)
        return np.asarray(self._predict([member], held_P)[0])

    def rounding(self, part: EnsemblePart, held_P: Mask) -> float:
        """Return the largest change of a probability that rounding makes, over these images."""
        plain = part.member.model_copy(update={"views": 1})
        both = [self._member(plain, state) for state in (part.finished.state, part.trained or {})]
        rounded_NC, trained_NC = np.exp(self._predict(both, held_P))
        return float(np.abs(rounded_NC - trained_NC).max())

    def spec(self, part: EnsemblePart, temperature: float) -> MemberSpec:
        """Return how the bundle is to rebuild a part."""
        classifier = fitted_network(part.member.network(), part.finished.state)
        views = part.member.views
        return MemberSpec(
            name=part.name,
            classifier=classifier,
            temperature=temperature,
            views=views,
            tower=part.member.tower,
            trunk=_trunk_key(part.member),
        )

    def trunks(self, parts: Sequence[EnsemblePart]) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return the weights that parts share, by their key."""
        frozen = [part.member for part in parts if part.member.trunk == "frozen"]
        return {load_trunk(member).key: load_trunk(member).state for member in frozen}

    def ensemble(
        self,
        members: Sequence[tuple[EnsemblePart, float]],
        temperature: float,
        combination: Combination,
        class_calibration: ClassCalibration | None = None,
    ) -> Ensemble:
        """Return the ensemble of parts and their temperatures, as its bundle will serve it."""
        ready = tuple(
            replace(self._member(part.member, part.finished.state), temperature=part_temperature)
            for part, part_temperature in members
        )
        share_trunks(ready)
        return Ensemble(ready, temperature, combination, class_calibration=class_calibration)

    def _member(self, settings: MemberSettings, state: State) -> Member:
        network = fitted_network(settings.network(), state)
        classifier = build_classifier(network, len(self.taxonomy.classes))
        classifier.net.load_state_dict(state)
        classifier.to(torch.device(self.device)).eval()
        return Member(
            settings.name,
            classifier,
            settings.preprocess,
            views=settings.views,
            trunk=_trunk_key(settings),
        )

    def _predict(self, members: Sequence[Member], chosen_P: Mask) -> Floats:
        images = self.images
        chosen = [images[index] for index in np.flatnonzero(chosen_P)]
        return predict_members(members, self.dataset, chosen)

    def _trained(self, ref: MemberRef) -> EnsemblePart:
        held_P = ref.held_P(self.records)
        finished = load_member(ref.run, ref.member.name)
        stored, state = finished.state, finished.state
        if self.settings.pack.weights == "fp16":
            state = in_half_precision(stored)
        rounded = any(state[name].dtype != value.dtype for name, value in stored.items())
        trained = _whole(ref.run, ref.member, stored) if rounded else None
        finished = replace(finished, state=_whole(ref.run, ref.member, state))
        self._check(ref.run, ref.member, finished, held_P)
        # Trained in half precision, it was also validated in it; it is served in full.
        exact = ref.member.views == 1 and ref.settings.engine.precision == "fp32"
        # A head on a frozen trunk was validated in all its views, on features in half precision.
        exact = exact or ref.member.trunk == "frozen"
        # It was validated before anything was rounded, here or in the file that it comes from.
        exact = exact and all(value.dtype != torch.float16 for value in state.values())
        return EnsemblePart(ref.name, ref.member, finished, exact, trained)

    def _check(
        self, run: Path, member: MemberSettings, finished: FinishedMember, held_P: Mask
    ) -> None:
        """Raise UserError unless it is of this network and was validated on images `held_P`."""
        folder, state = member_folder(run, member.name), finished.state
        network, classes = fitted_network(member.network(), state), len(self.taxonomy.classes)
        mend = f"delete {folder} to train it again"
        check_weights(network, classes, state, folder / WEIGHTS, mend)
        rows = int(held_P.sum())
        log_NC, truth_N = finished.validation_NC, finished.truth_N
        if log_NC.shape != (rows, classes) or len(truth_N) != rows or np.isnan(log_NC).any():
            raise UserError(
                f"{folder / VALIDATION} does not have the predictions of {member.name} for {rows} "
                f"images and {classes} classes; {mend}."
            )


def _trunk_key(member: MemberSettings) -> str:
    return load_trunk(member).key if member.trunk == "frozen" else ""


def _whole(run: Path, member: MemberSettings, state: State) -> State:
    """Return all tensors of a member: of a frozen trunk its folder holds the head alone.

    Raises UserError for a head that was made on the features of another trunk.
    """
    if member.trunk != "frozen":
        return state
    trunk, folder = load_trunk(member), member_folder(run, member.name)
    made_on = read_json(folder / "member.json", finite=False).get("trunk")
    if made_on != trunk.key:
        raise UserError(
            f"the head in {folder} was trained on the trunk {made_on}, but member {member.name} "
            f"has the trunk {trunk.key}; set the weights of the first of these trunks, or delete "
            "the folder of the head to train the head again."
        )
    return {**trunk.state, **state}


_BATCH = 32

Images = list[NDArray[np.uint8]]
Crops = Mapping[int, NDArray[np.uint8]]


def fit_fusion(path: Path, dataset: Path, margin: float) -> Bundle:
    """Fit the weight on the validation images in which the bundle's detector is sure of a box.

    Conformal sets and thresholds of the urgent risk are fitted again, on calibration alone, since
    they must fit what is served; those of the whole image stay beside them, for answers
    without the detector.
    Raises UserError for an image that cannot be read, and without ultralytics.
    """
    bundle = open_bundle(path)
    if provenance_value(bundle.spec.provenance, FOLD_TRAINED_IMAGES):
        print("no fusion: members learned from validation images, which its weight is fitted on")
        return bundle
    ensemble, detector = bundle.ensemble(), bundle.detector()
    assert detector is not None
    records, classes = read_manifest(dataset), bundle.taxonomy.keys
    val = split_of(records, "val")
    truth_N = class_numbers(val, classes)
    whole, crop, seen = [], [], []
    for first, images, crops in _looked(detector, dataset, val, margin):
        if crops:
            whole.append(ensemble.probabilities([images[index] for index in crops])[0])
            crop.append(ensemble.probabilities(list(crops.values()))[0])
            seen += [first + index for index in crops]
    weight = 0.0
    if seen:
        weight = fit_weight(np.concatenate(whole), np.concatenate(crop), truth_N[seen])
    print(
        f"the crop around the best box counts {weight:.2f}, fitted on {len(seen)} of {len(val)} "
        "validation images; the others have no sure box that shows less than the whole"
    )
    fusion = FusionSpec(weight=weight, margin=margin)
    spec, kinds = bundle.spec, ("conformal", *QUESTIONS)
    plain: dict[str, Any] = {
        kind: getattr(spec, f"whole_{kind}") or getattr(spec, kind) for kind in kinds
    }
    if not (plain["conformal"] and weight):
        return set_fusion(path, fusion, **plain)
    held = split_of(records, "calibration")
    whole_NC, fused_NC = [], []
    for _, pixels, crops in _looked(detector, dataset, held, margin):
        answers = ensemble.probabilities(pixels)
        whole_NC.append(answers[0])
        fused_NC.append(assist(ensemble, crops, answers, weight)[0])
    served = {"": np.concatenate(fused_NC), "whole_": np.concatenate(whole_NC)}
    fused = AnswerRules(**plain).refitted({"": served[""]}, held, bundle.taxonomy)
    rules = fused.model_copy(update={f"whole_{kind}": rule for kind, rule in plain.items()})
    metadata = spec.metadata and with_rules(spec.metadata, held, bundle.taxonomy, served, rules)
    return set_fusion(path, fusion, **dict(rules), metadata=metadata)


def _looked(
    detector: Detector, dataset: Path, records: Sequence[Record], margin: float
) -> Iterator[tuple[int, Images, Crops]]:
    """Yield batches: the number of the first image, the images, the crops of those with one."""
    files = Files(dataset, records, limited=True)
    for first in range(0, len(records), _BATCH):
        last = min(first + _BATCH, len(records))
        images = [files.image(number) for number in range(first, last)]
        boxes = detector.detect(images)
        yield first, images, box_crops(images, boxes, detector.spec.confidence, margin)


REPORT = "ensemble.json"


def pack_run(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Fit weights and temperatures, and pack members and detector.

    Writes RUN/ensemble.json, which says how the members are combined. With
    `fusion` the crop's weight is fitted too. A bundle that was packed from the same
    members, settings and data is left as it is.
    """
    packed_from = packing_fingerprint(run, dataset, settings, member_refs(run, settings))
    if there := packed_bundle(run, packed_from):
        print(f"{there.path} is packed from these members already; remove it to pack it again")
        return there
    bundle = _pack(run, dataset, settings, taxonomy)
    if settings.fusion:
        bundle = fit_fusion(bundle.path, dataset, settings.fusion.margin)
    # Last, so that a bundle with it is complete.
    add_provenance(bundle.path, {PACKED_FROM: packed_from})
    return open_bundle(bundle.path)


def _pack(run: Path, dataset: Path, settings: TrainSettings, taxonomy: Taxonomy) -> Bundle:
    """Write RUN/ensemble.json and a new RUN/bundle, without `fusion`."""
    records = read_manifest(dataset)
    device = resolve_accelerator(settings.engine.accelerator)
    builder = EnsembleBuilder(run, dataset, settings, taxonomy, records, device)
    refs = member_refs(run, settings)
    by_unit = units(refs, records)
    names = [name for unit in by_unit.values() for name in unit]
    parts = {part.name: part for part in builder.parts(names)}
    predicted = {
        name: builder.predict(parts[name], held_P)
        for unit in by_unit.values()
        for name, held_P in unit.items()
    }
    rounding = _rounding(builder, parts, by_unit) if settings.pack.weights == "fp16" else {}
    images = builder.images
    truth_P = class_numbers(images, taxonomy.keys)
    evidence = gather_evidence(by_unit, predicted, truth_P, [record.group for record in images])
    assembly = assemble(
        settings.ensemble.combine,
        evidence,
        {key: tuple(unit) for key, unit in by_unit.items()},
        taxonomy.keys,
        _expected_biases([refs[name] for name in names], records, taxonomy),
    )
    write_json(run / REPORT, assembly.report())
    learned = _learned_from(by_unit, assembly.members, images)
    folded = len(split_of(learned, "val"))
    packed = [
        (parts[name], t) for name, t in zip(assembly.members, assembly.temperatures, strict=True)
    ]
    ensemble = builder.ensemble(
        packed, assembly.temperature, assembly.combination, assembly.by_class
    )
    metadata = None
    if settings.ensemble.metadata == "auto":
        held = [images[n] for n in np.flatnonzero(out_of_fold_P(by_unit))]
        answers_NC = assembly.fitted.probabilities(evidence.log_UNC)
        metadata = fit_facts(answers_NC, held, taxonomy)
    ready = ReadyEnsemble(
        ensemble,
        [(builder.spec(part, t), part.finished.state) for part, t in packed],
        learned,
        metadata,
        builder.trunks([part for part, _ in packed]),
        [origin_beside(start) for name in assembly.members if (start := refs[name].member.weights)],
        assembly.fitted.by_class.words(taxonomy.keys, assembly.expected_C),
    )
    provenance = {
        **({FOLD_TRAINED_IMAGES: folded} if folded else {}),
        **packed_origin(settings),
        **rounding,
    }
    return pack_ensemble(
        run / "bundle",
        dataset,
        records,
        taxonomy,
        ready,
        name=settings.name,
        detector=packed_parts(run, settings),
        provenance=provenance,
        ood=settings.ensemble.ood,
        changed=settings.ensemble.ood_changes,
        use=settings.use,
        stored=settings.pack,
    )


ROUNDING = "largest_change_of_a_validation_probability_by_fp16"


def _rounding(
    builder: EnsembleBuilder,
    parts: Mapping[str, EnsemblePart],
    by_unit: Mapping[str, Mapping[str, Mask]],
) -> dict[str, float]:
    """Return for the provenance what rounding to half precision does to any member's answers."""
    changes = {
        name: builder.rounding(parts[name], held_P)
        for unit in by_unit.values()
        for name, held_P in unit.items()
        if parts[name].trained is not None
    }
    if not changes:
        print("weights in half precision, as the members' files hold them")
        return {}
    name = max(changes, key=changes.__getitem__)
    print(f"weights in half precision: {name} changes a probability by {changes[name]:.5f} at most")
    return {ROUNDING: round(changes[name], 6)}


def _expected_biases(
    refs: Sequence[MemberRef], records: Sequence[Record], taxonomy: Taxonomy
) -> Floats:
    """Return the biases that undo what the members' losses do to the classes, on average."""
    biases = []
    for ref in refs:
        trained, _ = partition(records, ref.member.fold, ref.settings.folds)
        numbers_N = class_numbers(trained, taxonomy.keys)
        counts_C = np.bincount(numbers_N, minlength=len(taxonomy.classes))
        biases.append(-ref.settings.recipe_of(ref.member).log_bias(counts_C))
    mean_C: Floats = np.mean(biases, axis=0)
    return mean_C


def _learned_from(
    by_unit: Mapping[str, Mapping[str, Mask]], packed: Sequence[str], images: Sequence[Record]
) -> list[Record]:
    """Return the images that at least one packed member trained on."""
    held = [mask_P for unit in by_unit.values() for name, mask_P in unit.items() if name in packed]
    return [images[index] for index in np.flatnonzero(~np.logical_and.reduce(held)).tolist()]
