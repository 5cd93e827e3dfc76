"""How many calibration images each class of a bundle has: the mix that its probabilities hold for.

Temperatures and thresholds are fitted on images of one mix of diseases. Where another one is seen,
a rare disease is rarer, or more common, than the probabilities say.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.data.manifest import Record, split_of
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.provenance import CALIBRATION_CLASSES, provenance_value
from skindx.models.calibration.prevalence import Prevalence, read_prevalence
from skindx.models.ood.images import calibration_labels


def calibration_classes(records: Sequence[Record]) -> dict[str, Any]:
    """Return, for the provenance, how many calibration images each class has.

    Of a dataset without a calibration split the validation images count, which the temperatures
    were fitted on.
    """
    held = split_of(records, "calibration") or split_of(records, "val")
    counts = Counter(record.label for record in held)
    return {CALIBRATION_CLASSES: dict(sorted(counts.items()))} if counts else {}


def mix_of(bundle: Bundle) -> dict[str, int] | None:
    """Return how many calibration images each class has, by its key; None: the bundle has no word.

    Bundles of older versions name them in their out-of-distribution check alone.
    """
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
    return Prevalence.of(read_prevalence(path, bundle.taxonomy), mix_of(bundle))
