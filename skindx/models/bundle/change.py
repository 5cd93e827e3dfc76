"""Changes of a packed bundle; each one replaces its parts in one step."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import atomic_folder, write_json, write_text
from skindx.core.errors import UserError
from skindx.models.bundle.bundle import BUNDLE, CARD, METRICS, Bundle, open_bundle, write_index
from skindx.models.bundle.card import model_card
from skindx.models.bundle.provenance import without_old_keys
from skindx.models.bundle.spec import BundleSpec
from skindx.models.calibration.conformal import Conformal
from skindx.models.calibration.urgent_risk import UrgentRisk
from skindx.models.embedding_index.index import EmbeddingIndex
from skindx.models.ensemble.crop_fusion import FusionSpec
from skindx.models.ood.stored import OodPart

GALLERY, OOD = "gallery", "ood"
"""Folders of a bundle that one part fills alone."""


def add_metrics(path: Path, metrics: dict[str, Any], expect: str | None = None) -> Bundle:
    """Put what an evaluation measured into the bundle and its model card, in one step.

    Returns the bundle as it is then, with another digest. Raises UserError where the one that is
    there does not have the digest that is expected.
    """
    _rewrite(open_bundle(path, expect), {}, metrics)
    return open_bundle(path)


def set_fusion(
    path: Path,
    fusion: FusionSpec,
    conformal: Conformal | None,
    whole_conformal: Conformal | None = None,
    *,
    urgent_risk: UrgentRisk | None = None,
    whole_urgent_risk: UrgentRisk | None = None,
) -> Bundle:
    """Put how the crop around the best box is judged, and the rules for it, into the bundle.

    `whole_conformal` and `whole_urgent_risk` are for serving the bundle without its
    detector.
    """
    bundle = open_bundle(path)
    change = {
        "fusion": fusion,
        "conformal": conformal,
        "whole_conformal": whole_conformal,
        "urgent_risk": urgent_risk,
        "whole_urgent_risk": whole_urgent_risk,
    }
    _rewrite(_changed(bundle, change), {}, bundle.metrics())
    return open_bundle(path)


def set_embedding_index(path: Path, index: EmbeddingIndex) -> None:
    """Replace the embedding index of a bundle, in one step."""
    bundle = open_bundle(path)
    _rewrite(_changed(bundle, {"gallery": index.spec}), {}, bundle.metrics(), {GALLERY: index})


def set_learned_parts(path: Path, index: EmbeddingIndex | None, ood: OodPart | None) -> None:
    """Replace the embedding index and the OOD check of a bundle, in one step.

    None for the index leaves it as it is; None for the check takes it out of the bundle.
    """
    bundle = open_bundle(path)
    parts: dict[str, EmbeddingIndex | OodPart | None] = {OOD: ood}
    change: dict[str, Any] = {"ood": ood.spec if ood else None}
    if index is not None:
        parts[GALLERY], change["gallery"] = index, index.spec
    _rewrite(_changed(bundle, change), {}, bundle.metrics(), parts)


def add_provenance(path: Path, facts: dict[str, Any]) -> None:
    """Put what became known later into the bundle's provenance and its model card, in one step."""
    bundle = open_bundle(path)
    _rewrite(bundle, facts, bundle.metrics())


def _changed(bundle: Bundle, change: dict[str, Any]) -> Bundle:
    return replace(bundle, spec=bundle.spec.model_copy(update=change))


def put_folder(path: Path, name: str, source: Path) -> None:
    """Put the files of a folder into the bundle under `name`, in the place of what is there."""
    bundle = open_bundle(path)
    with atomic_folder(path, BUNDLE) as folder:
        kept = [file for file in bundle.spec.files if not file.startswith(f"{name}/")]
        files = [(path / file, folder / file) for file in kept]
        files += [(file, folder / name / file.name) for file in source.iterdir()]
        for old, new in files:
            new.parent.mkdir(parents=True, exist_ok=True)
            _link(old, new)
        write_index(folder, bundle.spec)


def _rewrite(
    bundle: Bundle,
    facts: dict[str, Any],
    metrics: dict[str, Any] | None,
    parts: Mapping[str, EmbeddingIndex | OodPart | None] | None = None,
) -> None:
    """Write the bundle again; `parts` take the place of all files in the folders they name."""
    parts = parts or {}
    provenance = without_old_keys(bundle.spec.provenance, facts) | facts
    spec = bundle.spec.model_copy(update={"provenance": provenance})
    with atomic_folder(bundle.path, BUNDLE) as folder:
        for name in spec.files:
            if name not in (METRICS, CARD) and name.split("/")[0] not in parts:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                _link(bundle.path / name, folder / name)
        for part in parts.values():
            if part is not None:
                part.save(folder)
        if metrics is not None:
            write_json(folder / METRICS, metrics)
        write_text(folder / CARD, _card(spec, bundle, metrics))
        write_index(folder, spec)


def _card(spec: BundleSpec, bundle: Bundle, metrics: dict[str, Any] | None) -> str:
    try:
        return model_card(spec, bundle.taxonomy, metrics)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{bundle.path / METRICS} does not hold the figures of an evaluation "
            f"({type(error).__name__}); run `skindx evaluate` again."
        ) from None


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
