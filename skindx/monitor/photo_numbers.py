"""What a monitor keeps of a photo: some numbers of the image, of its embedding and of its answer.

The same function gives them for the bundle's calibration images, which are the reference, and for
a photo that is served: both start from `Features`, the networks' outputs for the whole image.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from skindx.models.bundle.bundle import Bundle
from skindx.models.combination import apply_temperature, log
from skindx.models.combination import combine as combine_members
from skindx.models.ensemble import Ensemble, EnsembleOutput
from skindx.models.ood.ood_check import OodCheck, combine, features_of
from skindx.models.ood.ood_features import LEVELS, SKETCH, Features, Floats, sketch
from skindx.models.urgent_risk import urgent_risks
from skindx.monitor.drift_detector import URGENT, Singles, Stream

# N = images, S = streams, C = classes, D = dimensions, F = image statistics


_IMAGE = (
    Stream("brightness", "camera", "photos are brighter", "photos are darker"),
    Stream("contrast", "camera", "photos have more contrast", "photos have less contrast"),
    Stream("red", "camera", "photos are redder", "photos are greener"),
    Stream("yellow", "camera", "photos are yellower", "photos are bluer"),
    Stream("colour", "camera", "colours differ more", "photos have less colour"),
    Stream("sharpness", "camera", "photos are sharper or noisier", "photos are more blurred"),
)
_UNFAMILIAR = Stream(
    "unfamiliar",
    "kind",
    "photos are less like the training images",
    "photos are more like the training images",
)
_CERTAIN = Stream("certainty", "answer", "answers are more certain", "answers are less certain")
_EDGE = 1e-6


@dataclass(frozen=True)
class PhotoNumbers:
    """Computes the numbers of photos of one bundle: first its streams, then all probabilities."""

    bundle: Bundle
    check: OodCheck | None

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that are tested, in the order of the columns."""
        moved = "the networks see other photos"
        sketch = (Stream(f"sketch-{n}", "kind", moved, moved) for n in range(1, SKETCH + 1))
        unfamiliar = (_UNFAMILIAR,) if self.check else ()
        return (*_IMAGE, *unfamiliar, *sketch, _CERTAIN, *((URGENT,) if self._urgent else ()))

    @cached_property
    def _urgent(self) -> list[int]:
        classes = self.bundle.taxonomy.classes
        return [n for n, skin_class in enumerate(classes) if skin_class.urgency == "urgent"]

    def compute(self, features: Features) -> Singles:
        """Return N x (S + C) numbers of images, of which the features have all served parts."""
        scores_NK = self.check.scores(features) if self.check else None
        return self._of(features, scores_NK, sketch(features.embeddings))

    def _of(self, features: Features, scores_NK: Floats | None, sketch_NS: Singles) -> Singles:
        spec = self.bundle.spec
        member_MNC = np.stack(
            [
                apply_temperature(logits_NC, member.temperature)
                for logits_NC, member in zip(features.logits_MNC, spec.members, strict=True)
            ]
        )
        probabilities_NC = combine_members(member_MNC, spec.temperature, spec.combination)
        if spec.class_calibration:
            probabilities_NC = spec.class_calibration.apply(log(probabilities_NC))
        top_N = np.clip(probabilities_NC.max(axis=1), _EDGE, 1 - _EDGE)
        columns: list[NDArray[np.floating]] = [_image_numbers(features.image_NF)]
        if self.check and scores_NK is not None:
            columns.append(combine(scores_NK, self.check.scores_NK)[:, None])
        columns += [sketch_NS, np.log(top_N / (1 - top_N))[:, None]]
        if self._urgent:
            columns.append(urgent_risks(probabilities_NC, self._urgent)[:, None])
        numbers: Singles = np.concatenate([*columns, probabilities_NC], axis=1).astype(np.float32)
        return np.nan_to_num(numbers)

    def reference(self) -> tuple[Singles | None, str]:
        """Return the numbers of the calibration images, one image of each group, or why not.

        Images of one group are no independent evidence; which one counts is left to its hash.
        """
        images = self.bundle.ood_images()
        if images is None:
            return None, "the bundle holds no features of calibration images"
        first: dict[str, int] = {}
        for n in sorted(range(len(images)), key=lambda n: images.rows[n].sha256):
            if images.rows[n].split == "calibration":
                first.setdefault(images.rows[n].group, n)
        chosen_N = np.array(sorted(first.values()), dtype=np.intp)
        features = images.features.select(chosen_N)
        if not features.logits_MNC:  # of an older bundle; they follow from its last layers
            layers = zip(features.pooled_MND, images.weights_MCD, images.biases_MC, strict=False)
            logits = tuple(pooled @ weight.T + bias for pooled, weight, bias in layers)
            features = replace(features, logits_MNC=logits)
        whole = (features.pooled_MND or images.sketch_NS is not None) and features.image_NF.shape[1]
        if not whole or len(features.logits_MNC) != len(self.bundle.spec.members):
            return None, "the bundle does not hold all features of its calibration images"
        if images.sketch_NS is None:
            return self.compute(features), ""
        if self.check and self.check.images != len(images):
            return None, "the bundle's features are not of the images that its check was fitted on"
        scores_NK = self.check.scores_NK[chosen_N] if self.check else None
        return self._of(features, scores_NK, images.sketch_NS[chosen_N]), ""

    def of_photos(
        self,
        ensemble: Ensemble,
        photos: Sequence[NDArray[np.uint8]],
        output: EnsembleOutput,
        places: Sequence[int],
    ) -> Singles:
        """Return the numbers of the decoded photos at some places, from the networks' output."""
        at = np.array(places, dtype=np.intp)
        return self.compute(features_of(ensemble, photos, output).select(at))


def _image_numbers(image_NF: Singles) -> Singles:
    """Return brightness, contrast, red - green, yellow - blue, range of colour, and sharpness.

    Sharpness is the log of the finest band's size over that of a four times coarser one, so that
    contrast does not count.
    """
    per_channel = 2 + 6 * LEVELS  # as `image_statistics` lays them out
    red, yellow = per_channel, 2 * per_channel
    fine_N, coarse_N = (image_NF[:, [2 + 6 * n + b for b in (0, 2, 4)]].mean(1) for n in (0, 2))
    mean_N = image_NF[:, [red + 1, yellow + 1]].mean(1)
    plain = [image_NF[:, column] for column in (0, 1, red, yellow)]
    return np.stack([*plain, mean_N, fine_N - coarse_N], axis=1)
