"""How often the privacy audit flags an image as an intimate region, with and without the modality.

Before: whatever the model says is a flag. After: nothing of the kind about a dermoscopic image,
which the dataset states, or else the pixels show. Dermoscopic images have no such region, so each
of their flags is a false alarm; flags of clinical photos are counted and nobody looked at them.
"""

from pathlib import Path

import numpy as np
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.manifest import read_image, read_manifest
from skindx.data.origin import Modality, origin_of
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.metrics import share_interval
from skindx.review.privacy_audit import PrivacyDetector, PrivacySettings, is_dermoscopic
from skindx_bench.harness.result import Figure, Result

SMALLEST = ("images=2",)


class Config(Settings):
    """Two datasets, of which `images` are drawn each; without datasets images are painted."""

    dermoscopic: Path | None = None
    clinical: Path | None = None
    images: int = Field(300, ge=2)
    seed: int = 0


def run(settings: Config) -> Result:
    """Show each image to the body model once and count the flags under each rule."""
    detector = PrivacyDetector(PrivacySettings())
    folders = {"dermoscopic": settings.dermoscopic, "clinical": settings.clinical}
    figures: dict[str, Figure] = {}
    notes = [
        f"Intimate regions from the score {PrivacySettings().intimate:g} on. unstated: as if the "
        "dataset did not say what it is, so that the pixels decide. Shares of images; intervals "
        "are exact (Clopper-Pearson) over groups.",
        "The network that knows dermoscopy by its pixels was fitted on a part of HAM10000.",
    ]
    for name, folder in folders.items():
        stated: Modality = "dermoscopic" if name == "dermoscopic" else "clinical"
        if folder is None:
            sample = [
                (str(number), paint(CLASSES[number % len(CLASSES)], number, settings.seed).pixels)
                for number in range(settings.images)
            ]
            images, source = iter(sample), "painted"
        else:
            records = sorted(read_manifest(folder), key=lambda record: record.sha256)
            order = np.random.default_rng(settings.seed).permutation(len(records))
            drawn = [records[at] for at in order[: settings.images]]
            stated = origin_of(folder, records).modality
            images = ((one.group, read_image(folder, one)) for one in drawn)
            source = f"{folder.resolve().parent.name}, {len(drawn)} of {len(records)} images"
        groups: list[str] = []
        alarms: dict[str, list[bool]] = {"before": [], "after": [], "unstated": [], "face": []}
        for group, pixels_HW3 in images:
            reasons = {sighting.reason for sighting in detector.bodies(pixels_HW3)}
            flagged = "intimate" in reasons
            groups.append(group)
            alarms["before"].append(flagged)
            alarms["after"].append(flagged and not is_dermoscopic(pixels_HW3, stated))
            alarms["unstated"].append(flagged and not is_dermoscopic(pixels_HW3, ""))
            alarms["face"].append("face" in reasons)
        notes.append(f"{name}: {source}; stated: {stated or 'nothing'}; seed {settings.seed}.")
        for rule, hits in alarms.items():
            kind = "face" if rule == "face" else f"intimate_{rule}"
            share = share_interval(hits, groups)
            figures[f"{name}_{kind}"] = Figure.of(share, "%", len(hits), 100)
    return Result("audit-alarms", figures, notes=tuple(notes), headings=("share", "95 % interval"))
