"""Compute the features that detectors read, from photos and from the networks' outputs."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.models.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.ood_check import OodCheck
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import (
    Features,
    Need,
    OodDetectorSettings,
    Singles,
    image_statistics,
)
from skindx.models.ood.stored_check import OodImages, OodPart, OodRow

# M = members, N = images, C = classes, D = dimensions

SERVED: frozenset[Need] = frozenset({"pooled", "logits", "image"})
"""Features of every runtime: an export ends in the last map; torch computes the others."""


def features_of(
    ensemble: Ensemble,
    photos: Sequence[NDArray[np.uint8]],
    output: EnsembleOutput,
    needs: Collection[Need] = SERVED,
    places: slice = slice(None),
) -> Features:
    """Return what `needs` names of decoded photos that `output` holds at `places`."""
    whole = all(member.preprocess.frame == "whole" for member in ensemble.members)
    nothing_N0 = np.zeros((len(photos), 0), dtype=np.float32)
    return Features(
        tuple(part[places] for part in output.pooled_MND) if "pooled" in needs else (),
        _logits(ensemble, output, places) if "logits" in needs else (),
        image_statistics(photos, whole=whole) if "image" in needs else nothing_N0,
    )


def p_values_of(
    check: OodCheck,
    ensemble: Ensemble,
    photos: Sequence[NDArray[np.uint8]],
    output: EnsembleOutput,
    first: int = 0,
) -> NDArray[np.float64]:
    """Return the p-value of each photo, N; `output` holds them from `first` on.

    One by one: products of matrices round otherwise for another number of rows.
    """
    places = [slice(n, n + 1) for n in range(first, first + len(photos))]
    return np.concatenate(
        [
            check.p_values(features_of(ensemble, [photo], output, check.needs, place))
            for photo, place in zip(photos, places, strict=True)
        ]
    )


def try_check(check: OodCheck, ensemble: Ensemble) -> None:
    """Raise UserError for a check whose numbers do not belong to these networks.

    A blank image shows it here, not in the first diagnosis.
    """
    blank_SS3 = np.zeros((64, 64, 3), dtype=np.uint8)
    try:
        with np.errstate(all="ignore"):
            features = features_of(
                ensemble, [blank_SS3], ensemble.predict_with_features([blank_SS3]), check.needs
            )
            finite = bool(np.isfinite(check.scores(features)).all())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"the bundle's out-of-distribution check is not of its networks ({reason}); copy or "
            "pack the bundle again."
        ) from None
    if not finite:
        raise UserError(
            "the bundle's out-of-distribution check gives no finite score; copy or pack the bundle "
            "again."
        )


def _logits(ensemble: Ensemble, output: EnsembleOutput, places: slice) -> tuple[Singles, ...]:
    with torch.inference_mode():
        return tuple(
            member.classifier.forward_head(map_[places]).float().cpu().numpy()
            for member, map_ in zip(ensemble.members, output.maps, strict=True)
        )


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
