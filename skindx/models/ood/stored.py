"""A check as a part of a bundle: `ood` in the index, and the files below `ood/`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from skindx.core.errors import UserError
from skindx.models.ood.check import OodCheck, OodSpec
from skindx.models.ood.images import OodImages
from skindx.models.ood.kinds import DETECTORS, AnyDetector
from skindx.models.tensors import load_arrays, save_tensors

CHECK = "ood/check.safetensors"
_SCORES = "scores"


@dataclass(frozen=True)
class OodPart:
    """What a bundle holds of its check: the index's words, the check, and what it was fitted on."""

    spec: OodSpec
    check: OodCheck
    images: OodImages

    @classmethod
    def fit(cls, detectors: Sequence[AnyDetector], images: OodImages) -> Self | None:
        """Fit a check; None where there are too few images for it."""
        images = images.as_stored()
        check = images.fit(detectors)
        if check is None:
            return None
        return cls(OodSpec(detectors=tuple(detectors), images=check.images), check, images)

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
            DETECTORS[settings.kind].of(
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
            f"bundle {folder}: {CHECK} does not hold what the index says of it ({error}); pack "
            "the bundle again."
        ) from None
    return OodCheck(detectors, scores_NK)
