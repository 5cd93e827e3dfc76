"""A check as a part of a bundle: `ood` in the index, and the files below `ood/`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record, table_of
from skindx.data.typed_rows import arrow_schema
from skindx.models.bounded_files import AGAIN, load_arrays, read_rows, save_tensors
from skindx.models.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.ood_check import FEWEST, OodCheck, OodSpec, features_of, fit_check
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import (
    SKETCH,
    Features,
    Floats,
    OodDetectorSettings,
    Singles,
    TrainingFeatures,
    sketch,
)

ROWS, FEATURES = "ood/images.parquet", "ood/images.safetensors"

# N = images, M = members, C = classes, D = dimensions


@dataclass(frozen=True, slots=True)
class OodRow:
    """One image; `split` is train (detectors were fitted on it) or calibration (it was scored)."""

    sha256: str
    label: str
    group: str
    split: str


@dataclass(frozen=True)
class OodImages:
    """Rows and features of training and calibration images, and the members' last layers."""

    rows: tuple[OodRow, ...]
    features: Features
    weights_MCD: tuple[Singles, ...] = ()
    biases_MC: tuple[Singles, ...] = ()
    sketch_NS: Singles | None = None
    """Random projections in the place of the pooled features, where these are not kept."""

    def __len__(self) -> int:
        return len(self.rows)

    def fit(self, settings: Sequence[OodDetectorSettings]) -> OodCheck | None:
        """Fit a check; None where too few images are there."""
        train_N = np.array([row.split == "train" for row in self.rows], dtype=bool)
        labels_N = np.array([row.label for row in self.rows], dtype=str)[train_N]
        if not train_N.any():
            return None
        known = self.features.select(train_N)
        learned = TrainingFeatures(known, labels_N, self.weights_MCD, self.biases_MC)
        return fit_check(settings, learned, self.features.select(~train_N))

    def as_stored(self) -> Self:
        """Return them in the precision in which they are stored.

        A check that is fitted again without any removal is then the same check.
        """
        pooled = tuple(_half(part).astype(np.float32) for part in self.features.pooled_MND)
        return replace(self, features=replace(self.features, pooled_MND=pooled))

    def without(self, sha256s: Collection[str]) -> Self:
        """Return the images without these and without all of their groups."""
        return self._of(self.kept(sha256s))

    def kept(self, sha256s: Collection[str]) -> NDArray[np.bool_]:
        """Tell which images have none of these in their group, N."""
        groups = {row.group for row in self.rows if row.sha256 in sha256s}
        return np.array([row.group not in groups for row in self.rows], dtype=bool)

    def of_calibration(self) -> Self:
        """Return the calibration images with a sketch of their embeddings: enough for a monitor."""
        held = self._of(np.array([row.split != "train" for row in self.rows], dtype=bool))
        features = replace(held.features, pooled_MND=())
        return type(self)(held.rows, features, sketch_NS=sketch(held.features.embeddings))

    def _of(self, kept_N: NDArray[np.bool_]) -> Self:
        rows = tuple(row for row, kept in zip(self.rows, kept_N, strict=True) if kept)
        known = None if self.sketch_NS is None else self.sketch_NS[kept_N]
        return replace(self, rows=rows, features=self.features.select(kept_N), sketch_NS=known)

    def save(self, folder: Path) -> None:
        """Write them below a bundle's folder."""
        import pyarrow.parquet as pq

        (folder / ROWS).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(self.rows, arrow_schema(OodRow)), folder / ROWS)
        tensors: dict[str, Any] = {"image": self.features.image_NF}
        tensors |= {} if self.sketch_NS is None else {"sketch": self.sketch_NS}
        for name, parts in self._lists().items():
            half = name == "pooled"
            tensors |= {
                f"{name}.{n}": _half(part) if half else part for n, part in enumerate(parts)
            }
        save_tensors(
            {name: torch.from_numpy(np.array(part, order="C")) for name, part in tensors.items()},
            folder / FEATURES,
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read them from a bundle's folder. Raises UserError for features that do not fit."""
        rows = read_rows(folder / ROWS, arrow_schema(OodRow)).to_pylist()
        tensors = load_arrays(folder / FEATURES)
        pooled, logits, weights, biases = (
            _listed(tensors, name) for name in ("pooled", "logits", "weights", "biases")
        )
        known = tensors.get("sketch")
        if not _fit_each_other(tensors, (pooled, logits, weights, biases), len(rows)):
            raise UserError(
                f"{folder / FEATURES} does not have the features of the {len(rows)} images in "
                f"{folder / ROWS}; {AGAIN}."
            )
        features = Features(pooled, logits, tensors["image"])
        return cls(tuple(OodRow(**row) for row in rows), features, weights, biases, known)

    def _lists(self) -> dict[str, tuple[Singles, ...]]:
        return {
            "pooled": self.features.pooled_MND,
            "logits": self.features.logits_MNC,
            "weights": self.weights_MCD,
            "biases": self.biases_MC,
        }


def _half(part: Singles) -> NDArray[np.float16]:
    largest = float(np.finfo(np.float16).max)
    return np.clip(part, -largest, largest).astype(np.float16)


def _listed(tensors: dict[str, Singles], name: str) -> tuple[Singles, ...]:
    parts: list[Singles] = []
    while (key := f"{name}.{len(parts)}") in tensors:
        parts.append(tensors[key].astype(np.float32))
    return tuple(parts)


def _fit_each_other(
    tensors: dict[str, Any], lists: tuple[tuple[Singles, ...], ...], rows: int
) -> bool:
    """True when features are of every image, of every last layer, and finite numbers.

    A detector that reads no logits stores none; members that share a trunk store no layers.
    """
    pooled, logits, weights, biases = lists
    plain = [tensors[name] for name in ("image", "sketch") if name in tensors]
    named = len(plain) + sum(map(len, lists))
    if "image" not in tensors or len(tensors) != named or len(weights) != len(biases):
        return False
    if plain[1:] and plain[1].shape[1:] != (SKETCH,):
        return False
    if any(part.ndim != 2 or len(part) != rows for part in (*plain, *pooled, *logits)):
        return False
    if weights and any(len(part) not in (0, len(weights)) for part in (pooled, logits)):
        return False
    layers = all(
        weight.ndim == 2 and bias.shape == weight.shape[:1]
        for weight, bias in zip(weights, biases, strict=True)
    )
    for axis, parts in enumerate((logits, pooled)):
        layers = layers and all(
            part.shape[1] == weight.shape[axis]
            for part, weight in zip(parts, weights, strict=False)
        )
    return layers and all(
        part.dtype.kind == "f" and bool(np.isfinite(part).all()) for part in tensors.values()
    )


def calibration_labels(folder: Path) -> list[str]:
    """Return the class of each calibration image below a bundle's folder. Raises UserError."""
    rows = read_rows(folder / ROWS, arrow_schema(OodRow)).to_pylist()
    return [row["label"] for row in rows if row["split"] == "calibration"]


CHECK = "ood/check.safetensors"
_SCORES = "scores"


@dataclass(frozen=True)
class OodPart:
    """What a bundle holds of its check: the index's words, the check, and what it was fitted on."""

    spec: OodSpec
    check: OodCheck
    images: OodImages

    @classmethod
    def fit(cls, detectors: Sequence[OodDetectorSettings], images: OodImages) -> Self | None:
        """Fit a check; None where there are too few images for it."""
        images = images.as_stored()
        check = images.fit(detectors)
        if check is None:
            return None
        return cls(OodSpec(detectors=tuple(detectors), images=check.images), check, images)

    def of_calibration(self) -> Self:
        """Return it without features of training images: the same check, which stays fitted."""
        return replace(self, images=self.images.of_calibration())

    def without(self, sha256s: Collection[str]) -> Self | None:
        """Return it without images and their groups; None where too few are left.

        The detectors are fitted again, where features of their training images are there.
        """
        if self.images.sketch_NS is None:
            return self.fit(self.spec.detectors, self.images.without(sha256s))
        kept_N = self.images.kept(sha256s)
        return self._scored(self.check.scores_NK[kept_N], self.images.without(sha256s))

    def calibrated_on(self, images: OodImages) -> Self | None:
        """Return the same detectors with the scores of other images; None for too few of them."""
        return self._scored(self.check.scores(images.features), images.of_calibration())

    def _scored(self, scores_NK: Floats, images: OodImages) -> Self | None:
        if len(scores_NK) < FEWEST:
            return None
        spec = self.spec.model_copy(update={"images": len(scores_NK)})
        return type(self)(spec, replace(self.check, scores_NK=scores_NK), images)

    def save(self, folder: Path) -> None:
        """Write it below a bundle's folder."""
        save_check(self.check, folder)
        self.images.save(folder)


def save_check(check: OodCheck, folder: Path) -> None:
    """Write a check below a bundle's folder; a detector's tensors are PLACE.NAME."""
    tensors: dict[str, Any] = {_SCORES: check.scores_NK}
    for place, detector in enumerate(check.detectors):
        tensors |= {f"{place}.{name}": value for name, value in detector.tensors().items()}
    (folder / CHECK).parent.mkdir(parents=True, exist_ok=True)
    save_tensors(
        {name: torch.from_numpy(np.array(value, order="C")) for name, value in tensors.items()},
        folder / CHECK,
    )


def load_check(folder: Path, spec: OodSpec) -> OodCheck:
    """Read the check of a bundle. Raises UserError for tensors that do not fit the index."""
    tensors = load_arrays(folder / CHECK)
    try:
        detectors = tuple(
            settings.detector.from_tensors(
                {
                    name.removeprefix(f"{place}."): value
                    for name, value in tensors.items()
                    if name.startswith(f"{place}.")
                }
            )
            for place, settings in enumerate(spec.detectors)
        )
        scores_NK = tensors[_SCORES]
        if scores_NK.shape != (spec.images, len(detectors)):
            raise KeyError(_SCORES)
        for name, array in tensors.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{name} is not finite")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"bundle {folder}: {CHECK} differs from its description in the index of the bundle "
            f"({error}); {AGAIN}."
        ) from None
    return OodCheck(detectors, scores_NK)


def last_layers(ensemble: Ensemble) -> tuple[tuple[Singles, ...], tuple[Singles, ...]]:
    """Return each member's last weights C x D and biases C.

    Nothing if one has no linear layer, or if members share a trunk: features are then of trunks.
    """
    if len(ensemble.trunk_places) < len(ensemble.members):
        return (), ()
    weights, biases = [], []
    for member in ensemble.members:
        head = member.classifier.net.get_classifier()  # type: ignore[operator]
        if not isinstance(head, torch.nn.Linear):
            return (), ()
        weights.append(head.weight.detach().float().cpu().numpy())
        bias = head.bias if head.bias is not None else torch.zeros(head.out_features)
        biases.append(bias.detach().float().cpu().numpy())
    return tuple(weights), tuple(biases)


CAP = 5_000
"""Training images that a check is fitted on: more change its figures little and its size much."""


class OodCollector:
    """Collects what detectors and a monitor need of training and of calibration images."""

    def __init__(
        self,
        ensemble: Ensemble,
        learned: Collection[str],
        detectors: Sequence[OodDetectorSettings] = DEFAULT,
    ) -> None:
        """Take of the training images those whose SHA-256 is in `learned`."""
        self._ensemble, self._learned, self._detectors = ensemble, learned, detectors
        self._rows: list[OodRow] = []
        self._features: list[Features] = []

    def train(
        self, records: Sequence[Record], photos: Sequence[NDArray[np.uint8]], output: EnsembleOutput
    ) -> None:
        """Take a batch of training images that the ensemble looked at."""
        mine_N = np.array([record.sha256 in self._learned for record in records], dtype=bool)
        if mine_N.any():
            self._add("train", records, mine_N, features_of(self._ensemble, photos, output))

    def calibration(
        self, records: Sequence[Record], photos: Sequence[NDArray[np.uint8]], output: EnsembleOutput
    ) -> None:
        """Take a batch of calibration images that the ensemble looked at."""
        all_N = np.ones(len(records), dtype=bool)
        self._add("calibration", records, all_N, features_of(self._ensemble, photos, output))

    def part(self) -> OodPart | None:
        """Return the fitted check; None for too few images."""
        images = self.images()
        return None if images is None else OodPart.fit(self._detectors, images)

    def _add(
        self, split: str, records: Sequence[Record], mine_N: NDArray[np.bool_], features: Features
    ) -> None:
        self._features.append(features.select(mine_N))
        self._rows += [
            OodRow(record.sha256, record.label, record.group, split)
            for record, mine in zip(records, mine_N, strict=True)
            if mine
        ]

    def images(self) -> OodImages | None:
        """Return all that was collected; None for nothing."""
        if not self._rows:
            return None
        weights, biases = last_layers(self._ensemble)
        return OodImages(tuple(self._rows), Features.join(self._features), weights, biases)
