"""The index of a bundle: its entries, the keys of its provenance, and every file with its hash."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from skindx.core.atomic_files import finish_folder, is_clutter, is_unfinished
from skindx.core.errors import UserError, instead_of
from skindx.core.settings_base import Settings
from skindx.core.untrusted import MEGABYTE, open_plain, parse_json, read_plain
from skindx.data.manifest import Record, Split, split_of
from skindx.data.origin import ImageOrigin
from skindx.imaging.photo_gates import ModalityCheck
from skindx.imaging.stored_colours import AS_STORED, Decoding
from skindx.models.adaptation import Adaptation
from skindx.models.bounded_files import AGAIN, MOST_BYTES, read_rows
from skindx.models.bundle.use_limits import UseLimits
from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import ClassifierSettings
from skindx.models.classifier.preprocess import Preprocess, Views
from skindx.models.combination import EQUAL, Combination, FusionSpec
from skindx.models.conformal import Conformal
from skindx.models.detector import DetectorRecall, DetectorSpec
from skindx.models.embedded import EmbeddingsSpec
from skindx.models.embedding_index import EmbeddingIndexSpec
from skindx.models.metadata_head import RULES, AnswerRules, MetadataSpec
from skindx.models.ood.ood_check import OodSpec, OodSpecV01
from skindx.models.towers import TowerOrigin
from skindx.models.urgent_risk import UrgentRiskRule


class MemberSpec(Settings):
    """One member: how to rebuild it, how it looks at an image, and its temperature."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    classifier: ClassifierSettings
    temperature: float = Field(1.0, gt=0)
    views: Views = 1
    tower: TowerOrigin | None = None
    """The tower whose weights it started from; None where it did not start from a tower."""
    trunk: str = Field("", pattern="^([0-9a-f]{16})?$")
    """File of the folder `trunks` with the weights below its head; empty: its own file has them."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # What bundles had no need of before is written where it is used.
        parts: dict[str, Any] = write(self)
        unused = {key for key in ("tower", "trunk") if not parts[key]}
        return {key: value for key, value in parts.items() if key not in unused}


class BundleSpec(Settings):
    """The index of a bundle, `bundle.json`."""

    format: Literal[1] = 1
    name: str = Field(max_length=256)
    created: str = Field(max_length=64)
    skindx: str = Field(max_length=64)
    temperature: float = Field(1.0, gt=0)
    combination: Combination = EQUAL
    class_calibration: ClassCalibration | None = Field(None, exclude_if=lambda own: own is None)
    """What calibrates the combined answer after its temperature, class by class; None for an older
    bundle, and where it gains nothing."""
    members: tuple[MemberSpec, ...] = Field(min_length=1)
    detector: DetectorSpec | None = None
    detector_recall: DetectorRecall | None = None
    """How many lesions of each size the detector finds on validation images; None for an older
    bundle, and where no validation image has boxes."""
    fusion: FusionSpec | None = None
    """How the crop around the best box is judged beside the whole image; none: it is not."""
    conformal: Conformal | None = None
    """Thresholds of the sets of classes; None where there was no calibration split to fit on."""
    whole_conformal: Conformal | None = None
    """Thresholds for answers without a crop, where `conformal` is for answers with one."""
    urgent_risk: UrgentRiskRule | None = None
    """Rule of the risk from which the next step is urgent; None for an older bundle and for too few
    calibration images of urgent classes. The next step then follows the set of classes."""
    whole_urgent_risk: UrgentRiskRule | None = None
    """The rule for answers without a crop, where `urgent_risk` is for answers with one."""
    soon_risk: UrgentRiskRule | None = Field(None, exclude_if=lambda rule: rule is None)
    """The same rule for urgent and soon classes together: it makes the next step at least soon."""
    whole_soon_risk: UrgentRiskRule | None = Field(None, exclude_if=lambda rule: rule is None)
    metadata: MetadataSpec | None = Field(None, exclude_if=lambda metadata: metadata is None)
    """Whether age, sex and place change an answer; None: the dataset did not say them, or the
    bundle is of an older version, and they change nothing."""
    gallery: EmbeddingIndexSpec | None = None
    ood: OodSpec | None = None
    """Whether a photo is out of distribution; None without enough calibration images."""
    novelty: OodSpecV01 | None = None
    """The out-of-distribution check of bundles of version 0.1."""
    adapted: Adaptation | None = Field(None, exclude_if=lambda adapted: adapted is None)
    """The local images that the bundle was adapted to; None: it was not adapted."""
    modality: ModalityCheck | None = Field(None, exclude_if=lambda check: check is None)
    """Check that refuses dermoscopic photos for a clinical bundle, and the reverse; None for an
    older bundle, and where its images are mixed, unknown or too few."""
    embeddings: EmbeddingsSpec | None = Field(None, exclude_if=lambda spec: spec is None)
    """Embeddings that its heads read in place of their tower; None: its networks are whole."""
    images: ImageOrigin | None = Field(None, exclude_if=lambda images: images is None)
    """What the images are that it learned from; None for an older bundle."""
    detector_images: ImageOrigin | None = Field(None, exclude_if=lambda images: images is None)
    """Origin of the images that its detector learned from and was measured on, perhaps in another
    run; None for an older bundle."""
    use: UseLimits | None = Field(None, exclude_if=lambda use: use is None)
    """What it may be used for and what it is not for; None: whoever trained it did not say."""
    decoding: Decoding = Field(AS_STORED, exclude_if=lambda decoding: decoding == AS_STORED)
    """The colours of the images that it learned from, and of the photos that it is shown: those of
    an older bundle are as stored, whatever profile a file has."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every file of the bundle, by its path inside it."""

    @model_validator(mode="after")
    def _a_weight_each(self) -> Self:
        weights = self.combination.weights
        if weights is not None and len(weights) != len(self.members):
            raise ValueError(f"{len(weights)} weights for {len(self.members)} members")
        return self


DEMO = "skindx-demo"
"""The name of the demo's bundle, by which one of an older version is recognised."""


def origin_of_bundle(spec: BundleSpec) -> ImageOrigin:
    """Return what the images are that a bundle learned from, as far as it says."""
    if spec.images is None and spec.name == DEMO:
        return ImageOrigin(painted="all")
    return spec.images or ImageOrigin()


def shown_frame(spec: BundleSpec) -> Preprocess:
    """Return what a photo's part in the answer is drawn by: the member that sees most.

    Where some members see whole photos and others squares, what is outside of the square counts
    less than an answer promises, so the square is shown.
    """
    seen = [member.classifier.preprocess for member in spec.members]
    squares = [preprocess for preprocess in seen if preprocess.frame == "square"]
    return max(squares or seen, key=lambda preprocess: preprocess.crop)


DETECTORS_MANIFEST = "detector's manifest sha256"
"""Provenance key: SHA-256 of the manifest that a detector of another run learned from."""


def origin_of_detector(spec: BundleSpec) -> ImageOrigin:
    """Return what a bundle's detector learned from and was measured on, as far as it says.

    An older bundle names the manifest of a detector that another run trained; without one it is
    of the same dataset as the members.
    """
    if spec.detector_images is not None:
        return spec.detector_images
    manifests = {spec.provenance.get(name) for name in (DETECTORS_MANIFEST, MANIFEST_SHA256)}
    foreign = DETECTORS_MANIFEST in spec.provenance and len(manifests) > 1
    return ImageOrigin() if foreign else origin_of_bundle(spec)


def origin_beside(weights: Path) -> ImageOrigin:
    """Return what the network learned from whose weights lie in a bundle or in a packed run.

    Nothing is known of a file that lies anywhere else.
    """
    for folder in weights.absolute().parents[:4]:
        for index in (folder / INDEX, folder / "bundle" / INDEX):
            with suppress(UserError, OSError):
                raw = parse_json(read_plain(index, _LONGEST_INDEX), str(index))
                return origin_of_bundle(BundleSpec.parse(raw, str(index), expand=False))
    return ImageOrigin()


MANIFEST_SHA256 = "manifest_sha256"
"""Provenance key: SHA-256 of the manifest that the members were trained on."""
TRAINING_IMAGES = "training_images"
TRAINING_COUNTS = "training_images_by"
"""How many training images each class, skin type, age, sex, site, source and licence has."""
FOLD_TRAINED_IMAGES = "validation_images_trained_on"
"""How many validation images members in folds trained on."""
REMOVED_TRAINED_ON = "removed_trained_on"
"""SHA-256 of images that were removed from the dataset after the members trained on them."""
REMOVED_MAYBE_TRAINED_ON = "removed_maybe_trained_on"
LEAST_SIDE_PX = "calibration_least_side_px"
"""The shorter side that 95 % of the calibration images reach."""

CLASS_CALIBRATION = "calibration_by_class"
"""What the calibration by class gains, and what the recipes let expect of it."""

CALIBRATION_CLASSES = "calibration_images_by_class"
"""How many calibration images each class has: the mix that the probabilities hold for."""

PACKED_FROM = "packed_from_sha256"
"""Provenance key: SHA-256 of the members, settings and data it was packed from."""

OLD_KEYS = {
    MANIFEST_SHA256: "manifest sha256",
    TRAINING_IMAGES: "training pictures",
    FOLD_TRAINED_IMAGES: "validation pictures learned from",
    REMOVED_TRAINED_ON: "taken down since, but learned from",
    REMOVED_MAYBE_TRAINED_ON: "taken down since, perhaps learned from",
    LEAST_SIDE_PX: "least side of calibration pictures (px)",
}
"""The key of version 0.1, by the key of today."""


def provenance_value(provenance: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return a value of a provenance by today's key, or by that of version 0.1."""
    return provenance.get(key, provenance.get(OLD_KEYS.get(key, key), default))


def without_old_keys(provenance: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance without version 0.1's names of some keys, which are written again."""
    old = {OLD_KEYS[key] for key in keys if key in OLD_KEYS}
    return {name: value for name, value in provenance.items() if name not in old}


RARE = 0.05
"""Share of the calibration images that may be smaller: too few to support an answer."""


def calibration_side(records: Sequence[Record]) -> dict[str, Any]:
    """Return, for the provenance, the shorter side that 95 % of calibration images reach.

    Empty for a dataset without calibration images.
    """
    sides = [min(record.width, record.height) for record in split_of(records, "calibration")]
    return {LEAST_SIDE_PX: int(np.quantile(sides, RARE, method="lower"))} if sides else {}


def calibration_classes(records: Sequence[Record]) -> dict[str, Any]:
    """Return, for the provenance, how many calibration images each class has.

    Of a dataset without a calibration split the validation images count, which the temperatures
    were fitted on.
    """
    held = split_of(records, "calibration") or split_of(records, "val")
    counts = Counter(record.label for record in held)
    return {CALIBRATION_CLASSES: dict(sorted(counts.items()))} if counts else {}


def rules_of(spec: BundleSpec) -> AnswerRules:
    return AnswerRules.model_validate({name: getattr(spec, name) for name in RULES})


def used_fields(spec: BundleSpec) -> tuple[str, ...]:
    """Return which facts about the person change an answer where they are given."""
    metadata = spec.metadata
    return metadata.head.fields if metadata and metadata.head and metadata.rules else ()


def least_side(spec: BundleSpec) -> int:
    """Return the pixels that the shorter side of a photo needs.

    That is what the smallest member sees, so that at least one network needs no enlarged photo;
    less only where calibration images themselves were smaller, since sets and temperatures were
    then fitted on enlarged ones.
    """
    seen = min(member.classifier.preprocess.margin_size for member in spec.members)
    checked = provenance_value(spec.provenance, LEAST_SIDE_PX)
    whole = isinstance(checked, int) and not isinstance(checked, bool) and checked > 0
    return min(seen, checked) if whole and isinstance(checked, int) else seen


INDEX, EXPORTS = "bundle.json", "exports"
"""The index, and the folder of the members' bodies for other runtimes."""
METRICS, CARD, EVALUATED = "metrics.json", "MODEL_CARD.md", "evaluation.json"
"""What was measured, the model card, and what binds both to the index that they lie beside."""

_LONGEST_INDEX = 32 * MEGABYTE
"""Most bytes of an index, which names each image that was taken down after training."""
_MOST_FILES, _DEEPEST = 10_000, 6
_FEWEST_DIGITS = 16


def read_index(path: Path, expect: str | None = None) -> bytes:
    """Return the bytes of a bundle's index, whose SHA-256 is the bundle's digest.

    Raises UserError for a folder that is no bundle, and for one whose digest, and that of its
    evaluation, do not begin with what a user expects.
    """
    index = path / INDEX
    if not path.exists():
        raise UserError(
            f"the bundle {path} does not exist; give the folder of a bundle that `skindx train` "
            "wrote."
        )
    if not index.is_file():
        finish_folder(path, INDEX)  # a kill may have left the files half in their places
    if not index.is_file():
        advice = instead_of(path, "bundle") or "give RUN/bundle"
        raise UserError(f"{path} is not a bundle, because it has no {INDEX}; {advice}.")
    wanted = None if expect is None else _parsed(expect)
    content = read_plain(index, _LONGEST_INDEX)
    digest, beside = digest_of(content), path / EVALUATED
    # That of its evaluation names the digest of the bundle, so it binds both.
    digests = [digest, *([digest_of(read_plain(beside))] if beside.is_file() else [])]
    if wanted is not None and not any(one.startswith(wanted) for one in digests):
        raise UserError(
            f"bundle {path} has the digest {digest}, not {wanted}, so it is another bundle or was "
            "changed; ask the person who gave you the digest for the correct bundle."
        )
    return content


def digest_of(index: bytes) -> str:
    """Return a bundle's digest, what `sha256sum bundle.json` prints: the index lists all hashes."""
    return hashlib.sha256(index).hexdigest()


def _parsed(expect: str) -> str:
    wanted = expect.strip().lower().removeprefix("sha256:")
    if not re.fullmatch("[0-9a-f]+", wanted) or not _FEWEST_DIGITS <= len(wanted) <= 64:
        raise UserError(
            f"the digest {expect[:80]!r} is not valid; give the first {_FEWEST_DIGITS} to 64 "
            "hexadecimal digits, as `skindx train` prints them."
        )
    return wanted


class BoundEvaluation(Settings):
    """`evaluation.json`: which figures and card lie beside the index of which bundle.

    Its SHA-256 is the evaluation's digest. No index lists it: an evaluation leaves the bundle's.
    """

    format: Literal[1] = 1
    bundle: str = Field(pattern="^[0-9a-f]{64}$")
    """The digest of the bundle."""
    metrics_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    card_sha256: str = Field(pattern="^[0-9a-f]{64}$")


def read_evaluation(path: Path, digest: str) -> dict[str, str]:
    """Return the files of a bundle's evaluation with their SHA-256; none where it has none.

    Raises UserError for an evaluation of a bundle with another digest.
    """
    file = path / EVALUATED
    if not os.path.lexists(file):
        return {}
    content = read_plain(file)
    bound = BoundEvaluation.parse(parse_json(content, str(file)), str(file), expand=False)
    if bound.bundle != digest:
        raise UserError(f"{file} belongs to bundle {bound.bundle}, not to {digest}; {AGAIN}.")
    listed = {METRICS: bound.metrics_sha256, CARD: bound.card_sha256}
    return listed | {EVALUATED: digest_of(content)}


def verify_files(path: Path, files: Mapping[str, str]) -> None:
    """Raise UserError unless the folder holds these files and nothing else, each with its SHA-256.

    Links, pipes and devices are no files of a bundle, whatever they lead to. What a file manager
    left beside the listed files is never read.
    """
    for name in files:
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or pure.as_posix() != name or "\0" in name:
            raise UserError(
                f"bundle {path} has a path {name!r} that points outside the bundle; do not use "
                "this bundle."
            )
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    existing = set()
    for number, (name, is_folder) in enumerate(_walk(path, path, 0)):
        if number > _MOST_FILES:
            raise UserError(
                f"bundle {path} has more than {_MOST_FILES} files; do not use this bundle."
            )
        if name not in (folders if is_folder else {INDEX, *files}):
            raise UserError(
                f"bundle {path} has a file {name!r} that {INDEX} does not list; delete this file, "
                "or pack the bundle again."
            )
        existing.add(name)
    for name, expected in files.items():
        if is_clutter(name):  # older versions listed it
            continue
        if name not in existing:
            raise UserError(f"in bundle {path} the file {name} is missing; {AGAIN}.")
        if _sha256(path / name) != expected:
            raise UserError(f"in bundle {path} the file {name} was altered; {AGAIN}.")


def _walk(root: Path, folder: Path, depth: int) -> Iterator[tuple[str, bool]]:
    """Yield each name below a folder and whether it is a folder. Raises UserError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = Path(entry.path).relative_to(root).as_posix()
            # Unfinished parts of a bundle and files of file managers are never read.
            if is_unfinished(name) or is_clutter(name):
                continue
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                raise UserError(
                    f"bundle {root} must have only plain files, but {name!r} is a link, a pipe or "
                    "a device; copy the bundle again with the files that its links lead to."
                )
            yield name, is_folder
            if is_folder and depth < _DEEPEST:
                yield from _walk(root, Path(entry.path), depth + 1)


def _sha256(file: Path) -> str:
    with open(open_plain(file, MOST_BYTES), "rb") as opened:  # noqa: PTH123 (a descriptor)
        return hashlib.file_digest(opened, "sha256").hexdigest()


SEEN = "seen.parquet"


def write_seen(path: Path, records: Iterable[Record]) -> None:
    """Write SHA-256 and split of each image of the dataset that a bundle is packed from."""
    write_seen_splits(path, {record.sha256: record.split for record in records})


def write_seen_splits(path: Path, seen: Mapping[str, Split]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = sorted(seen.items())
    columns = {"sha256": [sha256 for sha256, _ in rows], "split": [split for _, split in rows]}
    pq.write_table(pa.table(columns, schema=_schema()), path)


def read_seen(path: Path) -> Mapping[str, Split]:
    """Return the split of each image. Raises UserError for what is no such table."""
    table = read_rows(path, _schema())
    return dict(zip(table["sha256"].to_pylist(), table["split"].to_pylist(), strict=True))


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("sha256", pa.string()), ("split", pa.string())])
