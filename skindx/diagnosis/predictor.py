"""The served predictor: decoded images in, calibrated predictions out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.errors import UserError
from skindx.data.manifest import Split
from skindx.diagnosis.bundle_statement import BundleStatement
from skindx.diagnosis.conclusion import ServedRules
from skindx.diagnosis.network_gates import NetworkGates
from skindx.diagnosis.photo_checks import CheckedCase, PhotoNeeds
from skindx.imaging.photo_gates import ModalityCheck
from skindx.imaging.stored_colours import Decoding
from skindx.models.bundle.bundle import Bundle, given_prevalence, mix_of, open_bundle
from skindx.models.bundle.bundle_index import (
    MANIFEST_SHA256,
    BundleSpec,
    least_side,
    provenance_value,
    shown_frame,
)
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.combination import FusionSpec, Prevalence, assist, box_crops
from skindx.models.conformal import Conformal
from skindx.models.detector import Detector, NoUltralyticsError
from skindx.models.embedding_index import EmbeddingIndex
from skindx.models.ensemble import Ensemble, EnsembleOutput, OodResult, Prediction
from skindx.models.exports.backend_choice import EAGER, with_backend
from skindx.models.exports.runtimes import Backend, ExportCalibration
from skindx.models.fingerprints import Fingerprints
from skindx.models.metadata_head import AnswerRules, Floats, MetadataField, MetadataSpec
from skindx.models.ood.ood_check import OodCheck, p_values_of, try_check
from skindx.models.urgent_risk import MISS_RATES, UrgentRiskRule, check_level, rank_needs
from skindx.taxonomy import Taxonomy, urgent_known
from skindx.texts.catalogue import joined, spoken, text

# P = photos of a case, C = classes, M = members, D = dimensions


@dataclass(frozen=True)
class CaseOutput:
    """What the networks make of a case's photos, and the rules that decide what it means."""

    predictions: Sequence[Prediction]
    probabilities_PC: Floats
    """Probabilities with what is known of the person."""
    alone_PC: Floats
    """Probabilities by the photos alone."""
    members_MPC: Floats
    rules: ServedRules
    p_values_P: Floats | None
    """p-values of the out-of-distribution check; None: the bundle has none."""
    embeddings_PD: NDArray[np.float32]
    maps: Sequence[Tensor]
    """Last map of each member, of the P photos."""


@dataclass(frozen=True)
class Predictor:
    """A loaded bundle; everything that scores or shows a bundle goes through here."""

    bundle: Bundle
    ensemble: Ensemble
    detector: Detector | None
    missing: str = ""
    """Why there are no boxes although the bundle has a detector; empty otherwise."""
    fusion: FusionSpec | None = None
    """How the crop around the best box is judged beside the whole image."""
    gallery: EmbeddingIndex | None = None
    """The index of training images; None for a bundle of an older version."""
    ood: OodCheck | None = None
    """The out-of-distribution check; None without enough calibration images."""
    backend: str = EAGER
    """Runtime of the networks' bodies, such as `openvino bf16`."""
    miss_rate: float | None = None
    """Level of the urgent risk that makes a next step urgent; None: the default."""
    prevalence: Prevalence | None = None
    """The mix of diseases that shown probabilities hold for; None: that of the calibration images.

    `predict` gives uncorrected probabilities, which sets and thresholds are fitted on.
    """
    calibration: ExportCalibration | None = None
    """Rules fitted for the backend's answers; None: the bundle's own rules serve."""
    fields: tuple[MetadataField, ...] = ()
    """What is known of the person in the answers that its rules are for."""

    @classmethod
    def load(
        cls,
        path: Path,
        device: str = "cpu",
        backend: Backend = "auto",
        expect: str | None = None,
        miss_rate: float | None = None,
        *,
        prevalence: Path | None = None,
    ) -> Self:
        """Open and verify a bundle.

        Raises UserError for a bundle that is not whole, for a device that is not there, for a miss
        rate that it was not fitted for, and for a file of the prevalence that does not fit its
        classes.

        `expect`: its digest or the first digits, by which another bundle is refused.

        `backend` runs the networks' bodies; auto: the fastest export that this machine can run.
        Without ultralytics a bundle's detector is left out, and `missing` says so.
        """
        import torch

        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError, TypeError):  # by what is wrong: name or machine
            raise UserError(
                f"this machine has no device {device!r}; give --device cpu, or --device cuda on a "
                "machine with a GPU."
            ) from None
        bundle = open_bundle(path, expect)
        detector, missing = None, ""
        try:
            detector = (
                detector_of_bundle.fused() if (detector_of_bundle := bundle.detector()) else None
            )
        except NoUltralyticsError as error:
            missing = str(error)
        served = with_backend(bundle, bundle.ensemble(device), backend, device)
        ood = bundle.ood()
        if ood:
            try_check(ood, served.ensemble)
        return cls(
            bundle,
            served.ensemble,
            detector,
            missing,
            bundle.spec.fusion,
            bundle.gallery(),
            ood,
            served.name,
            calibration=served.calibration,
            prevalence=given_prevalence(bundle, prevalence),
        ).at_miss_rate(miss_rate)

    def at_miss_rate(self, miss_rate: float | None) -> Self:
        """Return the predictor at a level of the urgent risk. Raises UserError for one it lacks."""
        check_level(self.urgent_risk, miss_rate, self.taxonomy.classes)
        if self.soon_risk:
            check_level(self.soon_risk, miss_rate, self.taxonomy.classes)
        return replace(self, miss_rate=miss_rate)

    @property
    def adapted(self) -> bool:
        """Whether the bundle was fitted to local images; `calibration_mix` is then their mix."""
        return self.bundle.spec.adapted is not None

    @property
    def use(self) -> UseLimits | None:
        """What the bundle may be used for and what it is not for; None: it does not say."""
        return self.bundle.spec.use

    @cached_property
    def calibration_mix(self) -> dict[str, int] | None:
        """How many calibration images each class has; None: the bundle does not say."""
        return mix_of(self.bundle)

    @cached_property
    def metrics(self) -> dict[str, Any] | None:
        """What the bundle's last evaluation measured; None before the first."""
        return self.bundle.metrics()

    @cached_property
    def needs(self) -> PhotoNeeds:
        """What the bundle needs of a photo, and which photos it learned from.

        The view around a small box takes what there is, so a photo is then never made smaller.
        """
        sides = [member.preprocess.margin_size for member in self.ensemble.members]
        sides += [self.detector.spec.size] if self.detector else []
        crops = self.fusion and self.fusion.weight and self.has_detector
        return PhotoNeeds(
            side=None if crops else max(sides),
            least=self.least_side,
            decoding=self.decoding,
            dermoscopic=self.bundle.images.modality == "dermoscopic",
            learned=self.gallery.groups if self.gallery else (),
        )

    @property
    def gates(self) -> NetworkGates:
        """What a photo is compared with after the networks."""
        return NetworkGates(
            self.ood,
            self.modality,
            shown_frame(self.bundle.spec),
            "" if self.has_detector else self.missing or text("no_detector"),
            self.statement.refused_urgent,
        )

    @property
    def statement(self) -> BundleStatement:
        """What every answer of the spoken language states alike, made once for each."""
        if spoken() not in self._statements:
            self._statements[spoken()] = BundleStatement.from_bundle(self)
        return self._statements[spoken()]

    @cached_property
    def _statements(self) -> dict[str, BundleStatement]:
        return {}

    @property
    def taxonomy(self) -> Taxonomy:
        """The classes, in the order of the probabilities."""
        return self.bundle.taxonomy

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members, in the order of `member_probabilities_MC`."""
        return tuple(member.name for member in self.ensemble.members)

    @property
    def decoding(self) -> Decoding:
        """Colours of the pixels that the networks learned from, and are shown."""
        return self.bundle.spec.decoding

    @property
    def least_side(self) -> int:
        """Pixels that the shorter side of a photo needs."""
        return least_side(self.bundle.spec)

    @property
    def conformal(self) -> Conformal | None:
        """The rule of the sets, fitted on such answers; None: there is none, `no_sets` says why."""
        rules = self._rules
        return rules.whole_conformal if self._without_crops else rules.conformal

    @property
    def no_sets(self) -> str:
        """Why there are no sets of classes, in a sentence; empty where there are."""
        if self.conformal:
            return ""
        if self._without_crops and self.bundle.spec.conformal:
            return text("set_none_crops")
        return text("set_none_images")

    @property
    def urgent_risk(self) -> UrgentRiskRule | None:
        """The thresholds, fitted on such answers; None: there is none, see `no_urgent_risk`."""
        rules = self._rules
        return rules.whole_urgent_risk if self._without_crops else rules.urgent_risk

    @property
    def soon_risk(self) -> UrgentRiskRule | None:
        """The same of urgent and soon classes together; None: it raises no next step."""
        rules = self._rules
        return rules.whole_soon_risk if self._without_crops else rules.soon_risk

    @property
    def no_urgent_risk(self) -> str:
        """Why there is no threshold of the urgent risk, in a sentence; empty where there is."""
        if self.urgent_risk:
            return ""
        if not urgent_known(self.taxonomy.classes):
            return text("no_urgent_classes")
        if self._without_crops and self.bundle.spec.urgent_risk:
            return joined(text("threshold_crops"), text("threshold_instead"))
        least = rank_needs(max(MISS_RATES))
        return joined(text("threshold_none", least=least), text("threshold_instead"))

    @property
    def _rules(self) -> BundleSpec | ExportCalibration | AnswerRules:
        if self.fields and self.metadata:
            return self.metadata.rules["+".join(self.fields)]
        return self.calibration or self.bundle.spec

    @property
    def metadata(self) -> MetadataSpec | None:
        """How age, sex and place change an answer; None: not at all, as in an export with rules."""
        spec = self.bundle.spec.metadata
        return spec if spec and spec.head and spec.rules and not self.calibration else None

    @property
    def _without_crops(self) -> bool:
        """Whether answers lack the view around the box that the bundle's own answers have."""
        return bool(self.fusion and self.fusion.weight and not self.detector)

    @property
    def seen(self) -> Mapping[str, Split] | None:
        """The split of each image that the bundle was made from; None where it does not say."""
        return self.bundle.seen()

    @property
    def fingerprints(self) -> Fingerprints | None:
        """What recognises copies of images that made the bundle; None for an older bundle."""
        return self.bundle.fingerprints()

    @property
    def trained_on(self) -> str:
        """SHA-256 of the manifest that the bundle was trained on; "" where it does not say."""
        return str(provenance_value(self.bundle.spec.provenance, MANIFEST_SHA256, ""))

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Weights of the members; None: all weigh the same."""
        return self.ensemble.combination.weights

    @property
    def modality(self) -> ModalityCheck | None:
        """The check for photos of the other modality; None for a bundle without one."""
        return self.bundle.spec.modality

    @property
    def has_detector(self) -> bool:
        """True when predictions carry boxes."""
        return self.detector is not None

    def predict(
        self, images: Sequence[NDArray[np.uint8]], *, confidence: float | None = None
    ) -> list[Prediction]:
        """Predict decoded images (H x W x 3 RGB uint8, sizes may differ).

        `confidence` is the least score of a box; none: the bundle's own threshold. Predictions say
        what the checks of distribution and modality find; nothing is refused here.
        """
        if not images:
            return []
        predictions = self._checked(images, confidence)
        if not self.modality:
            return predictions
        return [
            replace(prediction, other_modality=self.modality.refuses(image))
            for prediction, image in zip(predictions, images, strict=True)
        ]

    def _checked(
        self, images: Sequence[NDArray[np.uint8]], confidence: float | None
    ) -> list[Prediction]:
        if not self.ood:
            return self._predict(images, self.ensemble.probabilities(images), confidence)
        predictions, output = self.predict_with_features(images, confidence=confidence)
        p_values_N = p_values_of(self.ood, self.ensemble, images, output)
        return [
            replace(prediction, ood=OodResult(float(p_value), self.ood.rate))
            for prediction, p_value in zip(predictions, p_values_N, strict=True)
        ]

    def see(
        self, cases: Sequence[CheckedCase]
    ) -> tuple[list[CaseOutput | UserError], EnsembleOutput]:
        """Return what the networks make of each case, and of all photos in their order.

        A case has UserError where the bundle's weights give no numbers. Photos of all cases go
        through the networks together; at least one case is needed.
        """
        pixels = [one.decoded.pixels_HWC for case in cases for one in case.passed.values()]
        predictions, output = self.predict_with_features(pixels)
        seen, end = [], 0
        for case in cases:
            places = slice(end, end := end + len(case.passed))
            seen.append(self._case_output(case, predictions[places], output, places))
        return seen, output

    def _case_output(
        self,
        checked: CheckedCase,
        predictions: Sequence[Prediction],
        output: EnsembleOutput,
        places: slice,
    ) -> CaseOutput | UserError:
        alone_PC = np.stack([one.probabilities_C for one in predictions])
        members_MPC = np.stack([one.member_probabilities_MC for one in predictions], axis=1)
        if not (np.isfinite(alone_PC).all() and np.isfinite(members_MPC).all()):
            return UserError(
                f"bundle {self.bundle.path} gives invalid probabilities for this photo, so its "
                "weights are damaged; train the bundle again."
            )
        p_values_P = None
        if self.ood:
            pixels = [photo.decoded.pixels_HWC for photo in checked.passed.values()]
            p_values_P = p_values_of(self.ood, self.ensemble, pixels, output, places.start)
        fields: tuple[MetadataField, ...] = ()
        known_PC, spec, patient = alone_PC, self.metadata, checked.case.patient
        if spec and spec.head and (fields := spec.served(patient.facts)):
            known_PC = spec.head.apply(alone_PC, [patient.facts.only(fields)] * len(alone_PC))
        return CaseOutput(
            predictions,
            known_PC,
            alone_PC,
            members_MPC,
            self._served_rules(fields),
            p_values_P,
            output.embeddings_ND[places],
            [map_[places] for map_ in output.maps],
        )

    def _served_rules(self, fields: tuple[MetadataField, ...]) -> ServedRules:
        """Return the rules for answers in which these facts of the person are known."""
        ruled = replace(self, fields=fields) if fields else self
        return ServedRules(
            taxonomy=self.taxonomy,
            conformal=ruled.conformal,
            urgent_risk=ruled.urgent_risk,
            soon_risk=ruled.soon_risk,
            miss_rate=self.miss_rate,
            weights=self.weights,
            prevalence=self.prevalence,
            fields=fields,
        )

    def predict_with_features(
        self, images: Sequence[NDArray[np.uint8]], *, confidence: float | None = None
    ) -> tuple[list[Prediction], EnsembleOutput]:
        """Return the same predictions, and what the networks see in the whole images.

        One pass gives both: the maps are for heat maps, the embeddings for `gallery` and
        `ood`. At least one image is needed.
        """
        output = self.ensemble.predict_with_features(images)
        whole = (output.probabilities_NC, output.member_MNC)
        return self._predict(images, whole, confidence), output

    def _predict(
        self,
        images: Sequence[NDArray[np.uint8]],
        whole: tuple[NDArray[np.float64], NDArray[np.float64]],
        confidence: float | None,
    ) -> list[Prediction]:
        boxes = self.detector.detect(images, confidence) if self.detector else None
        crops: dict[int, NDArray[np.uint8]] = {}
        probabilities_NC, member_MNC = whole
        if self.fusion and self.fusion.weight and self.detector and boxes:
            sure = self.detector.spec.confidence  # whatever `confidence` boxes are asked for
            crops = box_crops(images, boxes, sure, self.fusion.margin)
            probabilities_NC, member_MNC = assist(self.ensemble, crops, whole, self.fusion.weight)
        return [
            Prediction(
                probabilities_NC[index],
                member_MNC[:, index],
                boxes[index] if boxes is not None else None,
                whole[0][index] if index in crops else None,
            )
            for index in range(len(images))
        ]
