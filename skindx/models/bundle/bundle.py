"""The bundle: one folder with everything a diagnosis needs, hashed, loaded without pickle."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from skindx import __version__
from skindx.core.atomic_files import (
    FolderKind,
    atomic_folder,
    below,
    sha256_file,
    write_json,
    write_text,
)
from skindx.core.errors import UserError
from skindx.core.untrusted import MEGABYTE, parse_json, read_json
from skindx.data.embedding_files import EmbeddingRows
from skindx.data.manifest import Record, Split
from skindx.data.origin import UNSTATED, ImageOrigin
from skindx.imaging.photo_gates import ModalityCheck
from skindx.imaging.stored_colours import SRGB, Decoding
from skindx.models.bounded_files import AGAIN, load_tensors, save_tensors
from skindx.models.bundle.bundle_index import (
    CALIBRATION_CLASSES,
    CARD,
    EVALUATED,
    EXPORTS,
    INDEX,
    METRICS,
    SEEN,
    BundleSpec,
    MemberSpec,
    digest_of,
    origin_of_bundle,
    origin_of_detector,
    provenance_value,
    read_evaluation,
    read_index,
    read_seen,
    verify_files,
    write_seen,
)
from skindx.models.bundle.model_card import model_card
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import load_classifier
from skindx.models.combination import EQUAL, Combination, Prevalence, read_prevalence
from skindx.models.conformal import Conformal
from skindx.models.detector import (
    MODEL_WEIGHTS,
    MODEL_YAML,
    Detector,
    DetectorRecall,
    DetectorSpec,
    load_detector,
    save_detector,
)
from skindx.models.embedded import EmbeddingsSpec, embedded_member
from skindx.models.embedding_index import ROWS, TENSORS, EmbeddingIndex
from skindx.models.ensemble import Ensemble, Member, share_trunks
from skindx.models.fingerprints import FINGERPRINTS, Fingerprints
from skindx.models.metadata_head import RULES, MetadataSpec
from skindx.models.ood.ood_check import STATISTICS, OodCheck, load_check_v0_1
from skindx.models.ood.stored_check import (
    CHECK,
    FEATURES,
    OodImages,
    OodPart,
    calibration_labels,
    load_check,
)
from skindx.models.ood.stored_check import ROWS as OOD_ROWS
from skindx.models.urgent_risk import UrgentRiskRule
from skindx.taxonomy import Taxonomy

TAXONOMY, TRUNKS = "taxonomy.yaml", "trunks"

BUNDLE = FolderKind("a bundle", INDEX, (
    TAXONOMY, METRICS, CARD, EVALUATED, TRUNKS, SEEN, "*.safetensors", "members", "detector",
    "gallery", "ood", EXPORTS,
))  # fmt: skip
"""Kind of a bundle's folder, which another bundle may replace."""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle on disk."""

    path: Path
    spec: BundleSpec
    taxonomy: Taxonomy
    digest: str
    """SHA-256 of the index, which holds the hash of every file but those of its evaluation."""
    beside: Mapping[str, str] = field(default_factory=dict)
    """The files of its evaluation with their SHA-256; none before the first."""

    @property
    def evaluation(self) -> str:
        """The digest of its evaluation, the SHA-256 of evaluation.json; "" where it has none."""
        return self.beside.get(EVALUATED, "")

    @property
    def digests(self) -> str:
        """Return both digests."""
        return self.digest + (f", evaluation {self.evaluation}" if self.evaluation else "")

    @property
    def images(self) -> ImageOrigin:
        """What the images are that it learned from, as far as it says."""
        return origin_of_bundle(self.spec)

    @property
    def warning(self) -> str:
        """What its use and paintings mean for its answers, in sentences; "" where nothing does."""
        detector = origin_of_detector(self.spec) if self.spec.detector else UNSTATED
        used, painted = self.spec.use, self.images.warning or detector.warning_of_outlines
        return f"{used.sentence if used else ''} {painted}".strip()

    def ensemble(self, device: str = "cpu") -> Ensemble:
        """Rebuild the classifiers, in evaluation mode on `device`.

        Raises UserError for a bundle that lacks the tower below its heads.
        """
        if self.spec.embeddings:
            raise UserError(f"bundle {self.path} {self.spec.embeddings.lacks}")
        members = []
        trunks = {
            member.trunk: load_tensors(self.path / trunk_file(member.trunk))
            for member in self.spec.members
            if member.trunk
        }
        for member in self.spec.members:
            classifier = load_classifier(
                member.classifier,
                len(self.taxonomy.classes),
                self.path / _weights(member.name),
                trunks.get(member.trunk),
            )
            members.append(
                Member(
                    member.name,
                    classifier.to(device).eval(),
                    member.classifier.preprocess,
                    member.temperature,
                    member.views,
                    trunk=member.trunk,
                )
            )
        share_trunks(members)
        return self._of(members)

    def ensemble_on(self, rows: EmbeddingRows) -> Ensemble:
        """Rebuild the heads alone, for embeddings that their tower made of a dataset elsewhere.

        Raises UserError for members of several towers, and for embeddings of another length.
        """
        towers = {member.trunk for member in self.spec.members}
        if not self.spec.embeddings and (len(towers) > 1 or "" in towers):
            raise UserError(
                f"bundle {self.path} is not made of heads on one frozen tower only, so it cannot "
                "use embeddings; remove the embeddings and evaluate it on images with `skindx "
                "evaluate`."
            )
        members = [
            embedded_member(
                member.name,
                member.classifier.head,
                load_tensors(self.path / _weights(member.name)),
                rows,
                classes=len(self.taxonomy.classes),
                file=self.path / _weights(member.name),
                temperature=member.temperature,
            )
            for member in self.spec.members
        ]
        return self._of(members)

    def _of(self, members: Sequence[Member]) -> Ensemble:
        spec = self.spec
        shifts = spec.adapted.log_shifts if spec.adapted else ()
        fitted = (spec.temperature, spec.combination, shifts, spec.class_calibration)
        return Ensemble(tuple(members), *fitted)

    def detector(self) -> Detector | None:
        """Rebuild the detector; None when the bundle has none. Raises UserError without the extra.

        ultralytics is AGPL-3.0 and optional.
        """
        spec = self.spec.detector
        return load_detector(self.path / "detector", spec) if spec else None

    def gallery(self) -> EmbeddingIndex | None:
        """Return what the bundle shows of the images that it learned from; None for none."""
        return EmbeddingIndex.load(self.path, self.spec.gallery) if self.spec.gallery else None

    def ood(self) -> OodCheck | None:
        """Return the out-of-distribution check; None where too few images were there to fit it."""
        if self.spec.ood:
            return load_check(self.path, self.spec.ood)
        return self.novelty()

    def novelty(self) -> OodCheck | None:
        """Return the out-of-distribution check of a bundle of version 0.1; None in a newer one."""
        return load_check_v0_1(self.path, self.spec.novelty) if self.spec.novelty else None

    def ood_images(self) -> OodImages | None:
        """Return what the check was fitted on; None without one, and in a bundle of version 0.1."""
        return OodImages.load(self.path) if self.spec.ood else None

    def seen(self) -> Mapping[str, Split] | None:
        """Return the split of each image that the bundle was made from, by SHA-256.

        None for a bundle of an older version, which does not say.
        """
        return read_seen(self.path / SEEN) if SEEN in self.spec.files else None

    def fingerprints(self) -> Fingerprints | None:
        """Return what recognises copies of the images that made it; None for an older bundle."""
        return Fingerprints.load(self.path) if FINGERPRINTS in self.spec.files else None

    def lacking(self) -> list[str]:
        """Return in words what bundles of this version have and this older one lacks.

        Images are needed to make it, so it comes with the next packing.
        """
        parts = {
            "the newer out-of-distribution check": self.spec.novelty is not None,
            "the statement about what its images are": self.spec.images is None,
            "fingerprints of its images": FINGERPRINTS not in self.spec.files,
        }
        return [words for words, missing in parts.items() if missing]

    def metrics(self) -> dict[str, Any] | None:
        """Return what the last evaluation measured; None before the first."""
        listed = {**self.spec.files, **self.beside}  # an older bundle's index lists the figures
        file = self.path / METRICS
        return read_json(file, 64 * MEGABYTE, finite=False) if METRICS in listed else None


@dataclass(frozen=True)
class DetectorParts:
    """A trained detector before it is packed."""

    spec: DetectorSpec
    config: dict[str, Any]
    state: dict[str, torch.Tensor]
    recall: DetectorRecall | None = None
    """Recall on validation images; None where it was not measured."""
    images: ImageOrigin = UNSTATED
    """Origin of the images that it learned from and that `recall` was measured on."""


def pack(
    path: Path,
    name: str,
    taxonomy: Taxonomy,
    members: Sequence[tuple[MemberSpec, dict[str, torch.Tensor]]],
    *,
    temperature: float = 1.0,
    combination: Combination = EQUAL,
    class_calibration: ClassCalibration | None = None,
    detector: DetectorParts | None = None,
    conformal: Conformal | None = None,
    urgent_risk: UrgentRiskRule | None = None,
    soon_risk: UrgentRiskRule | None = None,
    metadata: MetadataSpec | None = None,
    gallery: EmbeddingIndex | None = None,
    ood: OodPart | None = None,
    modality: ModalityCheck | None = None,
    provenance: dict[str, Any] | None = None,
    seen: Iterable[Record] | None = None,
    fingerprints: Fingerprints | None = None,
    images: ImageOrigin | None = None,
    use: UseLimits | None = None,
    embeddings: EmbeddingsSpec | None = None,
    trunks: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    decoding: Decoding = SRGB,
) -> Bundle:
    """Write a bundle; it takes the place of an older one in one step.

    `trunks` are the weights that members share, by their `trunk`. `seen` are all images of the
    dataset, also those that only measured, `fingerprints` those of the images that made the
    bundle; `images` is what they are, `decoding` the colours of their pixels.
    """
    spec = BundleSpec(
        name=name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        skindx=__version__,
        temperature=temperature,
        combination=combination,
        class_calibration=class_calibration,
        members=tuple(member for member, _ in members),
        detector=detector.spec if detector else None,
        detector_recall=detector.recall if detector else None,
        detector_images=detector.images if detector else None,
        conformal=conformal,
        urgent_risk=urgent_risk,
        soon_risk=soon_risk,
        metadata=metadata,
        gallery=gallery.spec if gallery is not None else None,
        ood=ood.spec if ood else None,
        modality=modality,
        embeddings=embeddings,
        images=images,
        use=use,
        decoding=decoding,
        provenance=provenance or {},
    )
    with atomic_folder(path, BUNDLE) as folder:
        taxonomy.save(folder / TAXONOMY)
        for member, state in members:
            below = (trunks or {}).get(member.trunk, {})
            if member.trunk and not (folder / trunk_file(member.trunk)).exists():
                _save(below, folder / trunk_file(member.trunk))
            rest = {key: value for key, value in state.items() if key not in below}
            _save(rest, folder / _weights(member.name))
        if detector:
            save_detector(folder / "detector", detector.config, detector.state)
        for part in (gallery, ood, fingerprints):
            if part is not None:
                part.save(folder)
        if seen is not None:
            write_seen(folder / SEEN, seen)
        write_text(folder / CARD, model_card(spec, taxonomy, None))
        write_index(folder, spec)
    return open_bundle(path)


def open_bundle(path: Path, expect: str | None = None) -> Bundle:
    """Verify every file's hash and return the bundle.

    The hashes stand in the bundle itself: they say that it is whole, not who made it. `expect` is
    the digest from a trusted source, or its first digits. Raises UserError for no bundle, another
    digest, an evaluation of another bundle, and a missing, altered or additional file.
    """
    content = read_index(path, expect)
    origin = str(path / INDEX)
    raw = parse_json(content, origin)
    if (of := raw.get("format", 1)) != 1:
        raise UserError(
            f"bundle {path} has format {str(of)[:20]}, but this version of skindx reads format 1; "
            "install the newest skindx, or ask who trained it to pack it with this version."
        )
    spec = BundleSpec.parse(raw, origin, expand=False)
    needed = {TAXONOMY, *(_weights(member.name) for member in spec.members)}
    needed |= {trunk_file(member.trunk) for member in spec.members if member.trunk}
    needed |= {ROWS, TENSORS} if spec.gallery else set()
    needed |= {CHECK, OOD_ROWS, FEATURES} if spec.ood else set()
    needed |= {STATISTICS} if spec.novelty else set()
    detector = {f"detector/{name}" for name in (MODEL_YAML, MODEL_WEIGHTS)}
    needed |= detector if spec.detector else set()
    for name in sorted(needed - set(spec.files)):
        raise UserError(f"bundle {path}: {INDEX} does not list {name}; {AGAIN}.")
    beside = read_evaluation(path, digest_of(content))
    verify_files(path, {**spec.files, **beside})
    taxonomy = Taxonomy.load(path / TAXONOMY)
    _check_columns(path, spec, len(taxonomy.classes))
    if spec.adapted and len(spec.adapted.log_shifts) != len(taxonomy.classes):
        raise UserError(
            f"bundle {path} was adapted for {len(spec.adapted.log_shifts)} classes, but has "
            f"{len(taxonomy.classes)}; run `skindx adapt` on its parent again."
        )
    return Bundle(path, spec, taxonomy, digest_of(content), beside)


def _weights(member: str) -> str:
    return f"members/{member}/model.safetensors"


def trunk_file(trunk: str) -> str:
    """Return the file of the weights that several members share."""
    return f"{TRUNKS}/{trunk}.safetensors"


def _save(state: Mapping[str, torch.Tensor], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    save_tensors({key: value.contiguous() for key, value in state.items()}, file)


def write_index(folder: Path, spec: BundleSpec) -> None:
    """Write the list of the folder's files with their hashes, the last step of a bundle."""
    files = {
        file.relative_to(folder).as_posix(): sha256_file(file)
        for file in below(folder)
        if file.is_file() and file.name not in (INDEX, EVALUATED)
    }
    write_json(folder / INDEX, spec.model_copy(update={"files": files}).model_dump(mode="json"))


def _check_columns(path: Path, spec: BundleSpec, classes: int) -> None:
    """Raise UserError for a rule or a calibration that is of other classes than the taxonomy."""
    metadata, calibration = spec.metadata, spec.class_calibration
    if calibration and len(calibration.biases) != classes:
        raise UserError(
            f"bundle {path} has a calibration for {len(calibration.biases)} classes, but its "
            f"taxonomy has {classes}; {AGAIN}."
        )
    if metadata and metadata.head and len(metadata.head.weights[0]) != classes:
        raise UserError(
            f"bundle {path}: the weights of age, sex and place are for "
            f"{len(metadata.head.weights[0])} classes, but its taxonomy has {classes}; {AGAIN}."
        )
    with_fields = metadata.rules.values() if metadata else ()
    for rules, name in itertools.product((spec, *with_fields), RULES):
        rule = getattr(rules, name)
        last = max(rule.urgent_columns, default=-1) if rule else -1
        if last >= classes:
            raise UserError(
                f"bundle {path}: {name} refers to class {last}, but its taxonomy has only "
                f"{classes}; {AGAIN}."
            )


def mix_of(bundle: Bundle) -> dict[str, int] | None:
    """Return how many calibration images each class has, by its key; None: it does not say.

    Probabilities hold for this mix: where another one is seen, a rare disease is rarer, or more
    common, than they say. Bundles of older versions name the counts in their out-of-distribution
    check alone. Of an adapted one they are shares of 100,000, towards the local images.
    """
    if bundle.spec.adapted:
        return {key: round(1e5 * share) for key, share in bundle.spec.adapted.mix.items()}
    named = provenance_value(bundle.spec.provenance, CALIBRATION_CLASSES)
    if not isinstance(named, dict):
        named = Counter(calibration_labels(bundle.path)) if bundle.spec.ood else {}
    keys = bundle.taxonomy.keys
    counts = {
        key: named[key]
        for key in keys
        if isinstance(named.get(key), int) and not isinstance(named.get(key), bool)
    }
    known = {key: count for key, count in counts.items() if count > 0}
    return {key: known.get(key, 0) for key in keys} if known else None


def given_prevalence(bundle: Bundle, path: Path | None) -> Prevalence | None:
    """Return the mix of a file; None for no file.

    Raises UserError for a file that does not fit the bundle, and for a bundle without a mix.
    """
    if path is None:
        return None
    return Prevalence.from_shares(read_prevalence(path, bundle.taxonomy), mix_of(bundle))
