"""Finds out whether a run's bundle was packed from the members that the run has now.

Packing again would give the same predictions, and would drop what was added to the bundle since:
the figures of an evaluation, a fused crop, rules that were fitted again.
"""

from collections.abc import Mapping
from pathlib import Path

from skindx import __version__
from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.data.layout import MANIFEST
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.bundle.provenance import PACKED_FROM, provenance_value
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.member_refs import MemberRef
from skindx.training.finished.detector import weights_file
from skindx.training.finished.member import WEIGHTS, member_folder
from skindx.training.made_from import fingerprint_of


def packing_fingerprint(
    run: Path, dataset: Path, settings: TrainSettings, members: Mapping[str, MemberRef]
) -> str:
    """Return the hash of all that decides a bundle: settings, weights, manifest, version."""
    weights = {
        name: member_folder(ref.run, ref.member.name) / WEIGHTS for name, ref in members.items()
    }
    if settings.detector:
        weights["the detector"] = weights_file(settings.detector.from_run or run)
    return fingerprint_of(
        {
            "settings": settings.model_dump(
                mode="json", exclude={"engine", "monitors", "checkpoint", "distil"}
            ),
            "weights": {name: sha256_file(file) for name, file in weights.items()},
            "manifest": sha256_file(dataset / MANIFEST),
            "skindx": __version__,
        }
    )


def packed_bundle(run: Path, packed_from: str) -> Bundle | None:
    """Return RUN/bundle where it was packed from this; None where it is to be packed."""
    try:
        bundle = open_bundle(run / "bundle")
    except UserError:  # none, or one that is damaged
        return None
    return bundle if provenance_value(bundle.spec.provenance, PACKED_FROM) == packed_from else None
