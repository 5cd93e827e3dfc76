"""Keys of a bundle's provenance: what it was made from, and what was removed since.

Version 0.1 wrote other names; they are still read.
"""

from collections.abc import Mapping
from typing import Any

MANIFEST_SHA256 = "manifest_sha256"
"""Of the manifest that the members were trained on."""
TRAINING_IMAGES = "training_images"
FOLD_TRAINED_IMAGES = "validation_images_trained_on"
"""How many validation images members in folds trained on."""
REMOVED_TRAINED_ON = "removed_trained_on"
"""SHA-256 of images that were removed from the dataset after the members trained on them."""
REMOVED_MAYBE_TRAINED_ON = "removed_maybe_trained_on"
LEAST_SIDE_PX = "calibration_least_side_px"
"""The shorter side that 95 % of the calibration images reach."""

CALIBRATION_CLASSES = "calibration_images_by_class"
"""How many calibration images each class has: the mix that the probabilities hold for."""

PACKED_FROM = "packed_from_sha256"
"""Of the members, settings and data that the bundle was packed from."""

OLD_KEYS = {
    MANIFEST_SHA256: "manifest sha256",
    TRAINING_IMAGES: "training pictures",
    FOLD_TRAINED_IMAGES: "validation pictures learned from",
    REMOVED_TRAINED_ON: "taken down since, but learned from",
    REMOVED_MAYBE_TRAINED_ON: "taken down since, perhaps learned from",
    LEAST_SIDE_PX: "least side of calibration pictures (px)",
}
"""The key of version 0.1, by the key of today."""

_CARD = {
    MANIFEST_SHA256: "SHA-256 of the manifest",
    TRAINING_IMAGES: "training images",
    FOLD_TRAINED_IMAGES: "validation images that members in folds trained on",
    REMOVED_TRAINED_ON: "removed from the dataset after training",
    REMOVED_MAYBE_TRAINED_ON: "removed from the dataset, possibly after training",
    LEAST_SIDE_PX: "shorter side that 95 % of the calibration images reach (px)",
    CALIBRATION_CLASSES: "calibration images by class, whose mix the probabilities hold for",
    PACKED_FROM: "SHA-256 of the members, settings and data it was packed from",
}


def provenance_value(provenance: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return a value by today's key, or by that of version 0.1."""
    return provenance.get(key, provenance.get(OLD_KEYS.get(key, key), default))


def without_old_keys(provenance: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance without version 0.1's names of some keys, which are written again."""
    old = {OLD_KEYS[key] for key in keys if key in OLD_KEYS}
    return {name: value for name, value in provenance.items() if name not in old}


def card_title(key: str) -> str:
    """Return what the model card calls a value."""
    today = {old: key for key, old in OLD_KEYS.items()}
    return _CARD.get(today.get(key, key), key)
