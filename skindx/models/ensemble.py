"""Several classifiers whose calibrated probabilities are combined into one answer."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skindx.core.machine import cpu_count
from skindx.data.box import Box
from skindx.data.loader.load import work_ahead
from skindx.data.loader.source import Files
from skindx.data.manifest import Record
from skindx.imaging.stored_colours import Decoding
from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.heads import head_place
from skindx.models.classifier.preprocess import Preprocess, Views, framed_square, views_of
from skindx.models.combination import EQUAL, Combination, apply_temperature, combine, log, shifted

# M = members, N = images, C = classes, D = dimensions, B = batch, S = side

Memo = dict[Any, Any]
"""Results that members of one trunk, or of one preprocessing, share for the same images."""

Body = Callable[[Tensor], Tensor]
"""Squares B x S x S x 3 uint8 in, a network's last map out: eager, or what it was exported to."""


@dataclass(frozen=True)
class EnsembleOutput:
    """The predictions and features of images, from one pass through the networks."""

    probabilities_NC: NDArray[np.float64]
    member_MNC: NDArray[np.float64]
    """Probabilities of each member, calibrated as the ensemble is."""
    embeddings_ND: NDArray[np.float32]
    """Pooled features of all trunks side by side, of length 1 in all."""
    maps: tuple[Tensor, ...]
    """Each member's last map of the image as it is (the first view), N x ..."""
    pooled_MND: tuple[NDArray[np.float32], ...]
    """Each trunk's own pooled features, before they are made of length 1; a member without a
    common trunk is one by itself."""
    log_MNC: NDArray[np.float64]
    """Each member's uncalibrated log-probabilities, the log of the mean over its views."""


@dataclass(frozen=True)
class Member:
    """One trained classifier in evaluation mode, with its temperature (Guo et al. 2017)."""

    name: str
    classifier: Classifier
    preprocess: Preprocess
    temperature: float = 1.0
    views: Views = 1
    """Number of flipped and turned views of an image, whose mean probability is the answer."""
    exported: Body | None = None
    """The body in another runtime; None: the network's own, run by torch."""
    trunk: str = ""
    """Digest that members with equal bodies share; empty: its body is its own."""

    @property
    def body(self) -> Body:
        """Layers that compute the last map of a batch of squares."""
        return self.exported or self.classifier.forward_features

    def prepared(
        self, records: Sequence[Record], images: list[NDArray[np.uint8]]
    ) -> list[NDArray[np.uint8]]:
        """Return decoded images of a dataset as this member takes them: as they are."""
        return images

    def log_probabilities(
        self, images: Sequence[NDArray[np.uint8]], batch: int = 64, memo: Memo | None = None
    ) -> NDArray[np.float64]:
        """Return uncalibrated log-probabilities N x C of decoded images (H x W x 3 uint8).

        Members that are given the same `memo` for the same images pass a common trunk once.
        """
        with torch.inference_mode():
            return np.concatenate([log_BC for log_BC, _ in self._passes(images, batch, memo)])

    @torch.inference_mode()
    def log_probabilities_of_squares(
        self, batches: Iterable[NDArray[np.uint8]]
    ) -> NDArray[np.float64]:
        """Return uncalibrated log-probabilities N x C of images' squares, B x S x S x 3 uint8."""
        return np.concatenate([self._forward(squares_BSS3)[0] for squares_BSS3 in batches])

    @torch.inference_mode()
    def predict_with_features(
        self, images: Sequence[NDArray[np.uint8]], memo: Memo | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float32], Tensor]:
        """Return what `log_probabilities` does, pooled features N x D, and the maps."""
        logs, maps = zip(*self._passes(images, len(images), memo), strict=True)
        pooled = [self.classifier.forward_pooled(map_).float().cpu().numpy() for map_ in maps]
        return np.concatenate(logs), np.concatenate(pooled), torch.cat(maps)

    def _passes(
        self, images: Sequence[NDArray[np.uint8]], batch: int, memo: Memo | None
    ) -> Iterator[tuple[NDArray[np.float64], Tensor]]:
        """Yield the log-probabilities and maps of batches; on a CPU each image is one by itself.

        Kernels round otherwise for another number of images: an answer would depend on the images
        beside it. A batch would save a CPU no time. On a GPU it does.
        """
        memo = {} if memo is None else memo
        size = 1 if self.classifier.scale.device.type == "cpu" else batch
        for at in range(0, len(images), size):
            part: Memo = memo.setdefault((at, size), {})
            yield self._forward(self._squares(images[at : at + size], part), part)

    def _squares(self, images: Sequence[NDArray[np.uint8]], memo: Memo) -> NDArray[np.uint8]:
        """Return the images' squares; members of one preprocessing make them once."""
        key = ("squares", self.preprocess)
        if key not in memo:
            memo[key] = np.stack([framed_square(image, self.preprocess) for image in images])
        squares_BSS3: NDArray[np.uint8] = memo[key]
        return squares_BSS3

    def _map(self, view: int, squares_BSS3: Tensor, memo: Memo) -> Tensor:
        """Return the body's last map of one view; members of one trunk pass it once."""
        if not self.trunk:
            return self.body(squares_BSS3)
        key = ("map", self.trunk, id(self.exported), self.preprocess, view)
        if key not in memo:
            memo[key] = self.body(squares_BSS3)
        map_: Tensor = memo[key]
        return map_

    def _forward(
        self, squares_BSS3: NDArray[np.uint8], memo: Memo | None = None
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Return log-probabilities, the mean over the views, and the first view's map."""
        memo = {} if memo is None else memo
        device = self.classifier.scale.device
        views = views_of(torch.from_numpy(squares_BSS3).to(device), self.views)
        first = self._map(0, views[0], memo)
        seen = [
            self._log_probabilities(first),
            *(
                self._log_probabilities(self._map(number, view, memo))
                for number, view in enumerate(views[1:], start=1)
            ),
        ]
        # The log of the mean probability; one view is left as it is, to the bit.
        log_BC = torch.stack(seen).logsumexp(0) - math.log(self.views) if seen[1:] else seen[0]
        return log_BC.cpu().numpy(), first

    @torch.inference_mode()
    def energies(self, map_: Tensor) -> NDArray[np.float64]:
        """Return the logarithm of the summed exponentials of each map's logits, N.

        Log-probabilities and it make logits again. One by one: see `_passes`.
        """
        logits = [self.classifier.forward_head(one).double() for one in torch.split(map_, 1)]
        energies_N: NDArray[np.float64] = torch.cat(logits).logsumexp(1).cpu().numpy()
        return energies_N

    def _log_probabilities(self, map_: Tensor) -> Tensor:
        return torch.log_softmax(self.classifier.forward_head(map_).double(), dim=1)


@dataclass(frozen=True)
class Ensemble:
    """Members whose probabilities are combined, then calibrated: a temperature, classes, a mix.

    The calibration by class is of the combined answer: on HAM10000's validation images calibrating
    each member first, with as many biases a member, has the same cross-fitted log loss (0.451).
    A member's shown probabilities have it as well. Else it would name other classes than the
    ensemble does, and be compared with it at a disadvantage. Of a vote they are as they voted.
    """

    members: tuple[Member, ...]
    temperature: float = 1.0
    combination: Combination = EQUAL
    log_shifts: tuple[float, ...] = ()
    """Added to the classes' log-probabilities last, for the mix of local images; (): none."""
    class_calibration: ClassCalibration | None = None
    """Slope and biases after the temperature; None: none, as in bundles of before."""

    @property
    def trunks(self) -> tuple[int, ...]:
        """Return for each member the first one of its trunk; its own place where it shares none."""
        first: dict[Any, int] = {}
        return tuple(
            first.setdefault((member.trunk, member.preprocess) if member.trunk else place, place)
            for place, member in enumerate(self.members)
        )

    @property
    def trunk_places(self) -> tuple[int, ...]:
        """Return the first member of each trunk: what the embedding is made of."""
        return tuple(dict.fromkeys(self.trunks))

    def probabilities(
        self, images: Sequence[NDArray[np.uint8]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ensemble's probabilities N x C, and each member's M x N x C."""
        memo: Memo = {}
        return self.calibrated(
            [member.log_probabilities(images, memo=memo) for member in self.members]
        )

    def calibrated(
        self, log_MNC: Sequence[NDArray[np.float64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ensemble's probabilities N x C, and each member's as they are shown.

        `log_MNC` are the members' uncalibrated log-probabilities, or logits.
        """
        member_MNC = np.stack(
            [
                apply_temperature(log_NC, member.temperature)
                for log_NC, member in zip(log_MNC, self.members, strict=True)
            ]
        )
        return self._combined(member_MNC)

    def _combined(
        self, member_MNC: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        combined_NC = combine(member_MNC, self.temperature, self.combination)
        if self.class_calibration:
            combined_NC = self.class_calibration.apply(log(combined_NC))
            if not self.combination.votes:
                member_MNC = self.class_calibration.apply(log(member_MNC))
        if self.log_shifts:
            combined_NC = shifted(log(combined_NC), np.array(self.log_shifts))
        return combined_NC, member_MNC

    def predict_with_features(self, images: Sequence[NDArray[np.uint8]]) -> EnsembleOutput:
        """Return the same probabilities and what they were made from."""
        memo: Memo = {}
        logs, pooled, maps = zip(
            *(member.predict_with_features(images, memo) for member in self.members), strict=True
        )
        pooled = tuple(pooled[place] for place in self.trunk_places)
        units = [
            pooled_ND / np.maximum(np.linalg.norm(pooled_ND, axis=1, keepdims=True), 1e-12)
            for pooled_ND in pooled
        ]
        return EnsembleOutput(
            *self.calibrated(logs),
            (np.concatenate(units, axis=1) / math.sqrt(len(units))).astype(np.float32),
            maps,
            pooled,
            np.stack(logs),
        )


class MemberNetwork(nn.Module):
    """A network of a bundle: squares B x S x S x 3 of uint8 in, its logits B x C out.

    It is a copy in evaluation mode, so training it changes no answer. Its softmax is the member's
    probabilities, the mean over its views, before any calibration.
    """

    def __init__(
        self, member: Member, preprocess: Callable[[Any], Tensor], memo: Memo | None = None
    ) -> None:
        super().__init__()
        self.classifier = deepcopy(member.classifier, memo)
        """`classifier.net` is timm's module, which takes normalised B x 3 x S x S."""
        self.views: Views = member.views
        self.preprocess = preprocess
        """Function that makes the square, S x S x 3 uint8, of a photo."""
        self.eval()

    def forward(self, squares_BSS3: Tensor) -> Tensor:
        """Return logits, of any dtype on the 0..255 scale; differentiable."""
        logits_VBC = torch.stack(
            [self.classifier(view) for view in views_of(squares_BSS3, self.views)]
        )
        if self.views == 1:
            return logits_VBC[0]
        mean_BC = torch.log_softmax(logits_VBC, dim=2).logsumexp(0) - math.log(self.views)
        return mean_BC + logits_VBC[0].logsumexp(1, keepdim=True)


def share_trunks(members: Sequence[Member]) -> None:
    """Let members of one trunk hold one copy of its weights, on the device where they lie."""
    first: dict[str, Member] = {}
    for member in members:
        if not member.trunk:
            continue
        other = first.setdefault(member.trunk, member)
        if other is not member:
            names = member.classifier.net.state_dict(keep_vars=True)
            place = head_place(member.classifier.net)
            state = {
                name: tensor
                for name, tensor in other.classifier.net.state_dict(keep_vars=True).items()
                if name in names and not name.startswith(f"{place}.")
            }
            member.classifier.net.load_state_dict(state, strict=False, assign=True)


_BATCH = 32


def predict_members(
    members: Sequence[Member], dataset: Path, records: Sequence[Record]
) -> NDArray[np.float64]:
    """Return uncalibrated log-probabilities M x N x C, on the device where each member lies.

    Each image is decoded once for all members, and only a batch of them is in memory. Raises
    UserError for an image that is gone or damaged.
    """
    parts = []
    for batch in decoded(dataset, records):
        memo: Memo = {}
        parts.append(np.stack([member.log_probabilities(batch, memo=memo) for member in members]))
    return np.concatenate(parts, axis=1)


def predict_records(
    ensemble: Ensemble, dataset: Path, records: Sequence[Record]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ensemble's probabilities N x C and each member's M x N x C, as it serves them.

    Raises UserError for an image that is gone or damaged.
    """
    parts = [ensemble.probabilities(batch) for batch in decoded(dataset, records)]
    whole, members = zip(*parts, strict=True)
    return np.concatenate(whole), np.concatenate(members, axis=1)


def outputs_of_records(
    ensemble: Ensemble,
    dataset: Path,
    records: Sequence[Record],
    decoding: Decoding | None = None,
    change: Callable[[Record, NDArray[np.uint8]], NDArray[np.uint8]] | None = None,
) -> Iterator[tuple[Sequence[Record], list[NDArray[np.uint8]], EnsembleOutput]]:
    """Yield batches of records, their images, and the outputs of the ensemble.

    With `change`, images are first changed by it. Raises UserError for an image that is gone or
    damaged.
    """
    first = 0
    for images in decoded(dataset, records, decoding):
        batch = records[first : first + len(images)]
        first += len(images)
        seen = images if change is None else list(map(change, batch, images))
        # Members of one ensemble take all the same: pixels, or embeddings beside them.
        taken = ensemble.members[0].prepared(batch, seen)
        yield batch, taken, ensemble.predict_with_features(taken)


def decoded(
    dataset: Path, records: Sequence[Record], decoding: Decoding | None = None
) -> Iterator[list[NDArray[np.uint8]]]:
    """Yield batches of decoded images, H x W x 3 each, in the order of the records.

    Their colours are the dataset's, or those of a bundle that is to see them.
    """
    files = Files(dataset, records, decoding, limited=True)
    reading = work_ahead(files.image, range(len(records)), threads=cpu_count(), ahead=_BATCH)
    # Batches have nearly equal sizes: no batch-norm statistics may rest on a single image.
    batches = np.array_split(np.arange(len(records)), -(-len(records) // _BATCH))
    with closing(reading) as images:
        for batch in batches:
            yield list(islice(images, len(batch)))


@dataclass(frozen=True, slots=True)
class OodResult:
    """The p-value of the out-of-distribution check; at `rate` and below the image is refused."""

    p_value: float
    rate: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Calibrated class probabilities of one image, and its lesion boxes.

    `probabilities_C` sums to 1 in the bundle's class order; `member_probabilities_MC` holds each
    member's own. `boxes` are pixels of the image as given, best first; None means that the
    bundle has no detector, () that the detector found nothing.
    """

    probabilities_C: NDArray[np.float64]
    member_probabilities_MC: NDArray[np.float64]
    boxes: tuple[Box, ...] | None = None
    whole_C: NDArray[np.float64] | None = None
    """Probabilities by the whole image alone, where a crop was used as well."""
    ood: OodResult | None = None
    """The out-of-distribution check; None where there is none, or where it was not asked."""
    known_C: NDArray[np.float64] | None = None
    """Probabilities with age, sex and place, where an evaluation knows and uses some."""
    other_modality: bool | None = None
    """Whether it is refused as of the other kind, dermoscopic or clinical; None as above."""
