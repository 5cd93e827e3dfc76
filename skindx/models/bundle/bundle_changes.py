"""Changes of a packed bundle, each in one step, and the removal of images from it.

An evaluation lies beside the index and leaves the bundle's digest as it is. A change of the digest
that leaves the networks' answers (exports, facts, removed images) binds the evaluation to the new
one; metrics.json names the digest that was measured. A change of the answers drops it.

The embedding index and the out-of-distribution check lose removed images. Weights cannot, so the
provenance lists the removed images that the members were trained on.
"""

import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from skindx.core.atomic_files import (
    atomic_folder,
    entries,
    finish_folder,
    is_unfinished,
    sha256_file,
    write_json,
    write_text,
)
from skindx.core.errors import UserError
from skindx.data.blocklist import Blocked
from skindx.data.manifest import Split
from skindx.models.bundle.bundle import BUNDLE, Bundle, open_bundle, write_index
from skindx.models.bundle.bundle_index import (
    CARD,
    EVALUATED,
    FOLD_TRAINED_IMAGES,
    INDEX,
    MANIFEST_SHA256,
    METRICS,
    REMOVED_MAYBE_TRAINED_ON,
    REMOVED_TRAINED_ON,
    SEEN,
    BoundEvaluation,
    BundleSpec,
    provenance_value,
    without_old_keys,
    write_seen_splits,
)
from skindx.models.bundle.installed import refuse_change
from skindx.models.bundle.model_card import model_card
from skindx.models.combination import FusionSpec
from skindx.models.conformal import Conformal
from skindx.models.embedding_index import EmbeddingIndex
from skindx.models.fingerprints import FINGERPRINTS, Fingerprints
from skindx.models.metadata_head import MetadataSpec
from skindx.models.ood.stored_check import OodPart
from skindx.models.urgent_risk import UrgentRiskRule

GALLERY, OOD = "gallery", "ood"
"""Folders of a bundle that one part fills alone."""
LearnedPart = EmbeddingIndex | OodPart | Fingerprints


class _Savable(Protocol):
    def save(self, folder: Path) -> None: ...


def add_metrics(path: Path, metrics: dict[str, Any], expect: str | None = None) -> Bundle:
    """Put what an evaluation measured beside the bundle, with its model card, in one step.

    Returns the bundle as it is then, with the same digest. Raises UserError where the one that is
    there does not have the digest that is expected, and for figures of another one.
    """
    bundle = open_bundle(path, expect)
    measured = (metrics.get("origin") or {}).get("bundle_digest") or bundle.digest
    if measured != bundle.digest:
        raise UserError(
            f"the figures belong to a bundle with the digest {measured}, but bundle {path} has "
            f"{bundle.digest}; run `skindx evaluate` on this bundle again."
        )
    refuse_change(path)
    with atomic_folder(path, BUNDLE) as folder:
        for name in {INDEX, *bundle.spec.files} - {METRICS, CARD}:
            _put(path / name, folder / name)
        _bind(folder, bundle, bundle.spec, metrics)
    return open_bundle(path)


def set_fusion(
    path: Path,
    fusion: FusionSpec,
    conformal: Conformal | None,
    whole_conformal: Conformal | None = None,
    *,
    urgent_risk: UrgentRiskRule | None = None,
    whole_urgent_risk: UrgentRiskRule | None = None,
    soon_risk: UrgentRiskRule | None = None,
    whole_soon_risk: UrgentRiskRule | None = None,
    metadata: MetadataSpec | None = None,
) -> Bundle:
    """Put how the crop around the best box is judged, and the rules for it, into the bundle.

    Those that begin with `whole_` are for serving the bundle without its detector. `metadata` has
    the rules for answers with age, sex and place; None: what is there. An evaluation goes: it
    measured other answers.
    """
    bundle = open_bundle(path)
    change = {
        "metadata": metadata or bundle.spec.metadata,
        "fusion": fusion,
        "conformal": conformal,
        "whole_conformal": whole_conformal,
        "urgent_risk": urgent_risk,
        "whole_urgent_risk": whole_urgent_risk,
        "soon_risk": soon_risk,
        "whole_soon_risk": whole_soon_risk,
    }
    _rewrite(_changed(bundle, change), {}, None)
    return open_bundle(path)


def replace_parts(path: Path, parts: Mapping[str, LearnedPart | None]) -> None:
    """Replace parts of a bundle by GALLERY, OOD and FINGERPRINTS, in one step; None: it goes."""
    bundle = open_bundle(path)
    change = {
        name: None if part is None or isinstance(part, Fingerprints) else part.spec
        for name, part in parts.items()
        if name != FINGERPRINTS
    }
    _rewrite(_changed(bundle, change), {}, bundle.metrics(), parts)


def add_provenance(path: Path, facts: dict[str, Any]) -> None:
    """Put what became known later into the bundle's provenance and its model card, in one step."""
    bundle = open_bundle(path)
    _rewrite(bundle, facts, bundle.metrics())


def write_adapted(
    bundle: Bundle,
    out: Path,
    *,
    change: dict[str, Any],
    facts: dict[str, Any],
    ood: OodPart | None,
    seen: Mapping[str, Split] | None,
    fingerprints: Fingerprints | None,
    left_out: Collection[str],
) -> Bundle:
    """Write another bundle of the same networks, without the figures of an evaluation.

    `seen` and `fingerprints` take the place of the images that the bundle knows; `left_out` are
    names of files.
    """
    parts: dict[str, LearnedPart | None] = {OOD: ood} if ood else {}
    parts |= {FINGERPRINTS: fingerprints} if fingerprints else {}
    files = {name: hash_ for name, hash_ in bundle.spec.files.items() if name not in left_out}
    _rewrite(_changed(bundle, {**change, "files": files}), facts, None, parts, out=out, seen=seen)
    return open_bundle(out)


def _changed(bundle: Bundle, change: dict[str, Any]) -> Bundle:
    return replace(bundle, spec=bundle.spec.model_copy(update=change))


def put_folder(path: Path, name: str, source: Path) -> None:
    """Put the files of a folder into the bundle under `name`, in the place of what is there."""
    bundle = open_bundle(path)
    _rewrite(bundle, {}, bundle.metrics(), {name: _Files(name, source)})


@dataclass(frozen=True)
class _Files:
    name: str
    source: Path

    def save(self, folder: Path) -> None:
        for file in entries(self.source):
            _put(file, folder / self.name / file.name)


def _rewrite(
    bundle: Bundle,
    facts: dict[str, Any],
    metrics: dict[str, Any] | None,
    parts: Mapping[str, _Savable | None] | None = None,
    *,
    out: Path | None = None,
    seen: Mapping[str, Split] | None = None,
) -> None:
    """Write the bundle again; `parts` take the place of all files in the folders they name.

    `metrics` lie beside the index, which is the same without them. `out` is another folder than
    its own; `seen` are other images than it knows.
    """
    parts = parts or {}
    if out is None:
        refuse_change(bundle.path)
    provenance = without_old_keys(bundle.spec.provenance, facts) | facts
    spec = bundle.spec.model_copy(update={"provenance": provenance})
    with atomic_folder(out or bundle.path, BUNDLE) as folder:
        for name in {*spec.files} - {METRICS, CARD, *([SEEN] if seen else [])}:
            if not any(f"{name}/".startswith(f"{part}/") for part in parts):
                _put(bundle.path / name, folder / name)
        for part in parts.values():
            if part is not None:
                part.save(folder)
        if seen:
            write_seen_splits(folder / SEEN, seen)
        write_text(folder / CARD, model_card(spec, bundle.taxonomy, None))
        write_index(folder, spec)
        if metrics is not None:
            _bind(folder, bundle, spec, metrics)


def _bind(folder: Path, bundle: Bundle, spec: BundleSpec, metrics: dict[str, Any]) -> None:
    """Write figures, card and what binds them to the index that lies in the folder."""
    write_json(folder / METRICS, metrics)
    write_text(folder / CARD, _card(spec, bundle, metrics))
    digest, metrics_sha256, card_sha256 = (
        sha256_file(folder / name) for name in (INDEX, METRICS, CARD)
    )
    bound = BoundEvaluation(bundle=digest, metrics_sha256=metrics_sha256, card_sha256=card_sha256)
    write_json(folder / EVALUATED, bound.model_dump(mode="json"))


def _card(spec: BundleSpec, bundle: Bundle, metrics: dict[str, Any]) -> str:
    try:
        return model_card(spec, bundle.taxonomy, metrics)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{bundle.path / METRICS} has no valid figures of an evaluation "
            f"({type(error).__name__}); run `skindx evaluate` again."
        ) from None


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)


def uses(path: Path, entries: Iterable[Blocked]) -> dict[str, str | None]:
    """Return what a bundle did with images that were taken down: SHA-256 -> split.

    The split is that of the manifest which the bundle was trained on: it learned from train, was
    chosen by val, measured by test; "" if the image was not in it. None: the bundle is of an
    older version and its manifest another one, so the split is unknown. Members that were trained
    in folds learned from val as well. Raises UserError for no bundle.
    """
    bundle = open_bundle(path)
    provenance, seen = bundle.spec.provenance, bundle.seen()
    manifest = provenance_value(provenance, MANIFEST_SHA256)
    folded = provenance_value(provenance, FOLD_TRAINED_IMAGES, 0) > 0
    trained_on = provenance_value(provenance, REMOVED_TRAINED_ON, [])
    splits: dict[str, str | None] = {}
    for entry in entries:
        if entry.sha256 in trained_on:
            splits[entry.sha256] = "train"
            continue
        split: str | None
        if seen is not None:
            split = seen.get(entry.sha256, "")
        else:
            split = entry.manifests.get(str(manifest))
        splits[entry.sha256] = "train" if split == "val" and folded else split
    return splits


def record_removal(path: Path, used: Mapping[str, str | None]) -> None:
    """Write into provenance and model card which removed images the bundle learned from.

    What is written already is not written again.
    """
    provenance = open_bundle(path).spec.provenance
    facts = {}
    for key, split in ((REMOVED_TRAINED_ON, "train"), (REMOVED_MAYBE_TRAINED_ON, None)):
        before = provenance_value(provenance, key, [])
        listed = sorted({*before, *(sha256 for sha256, of in used.items() if of == split)})
        if listed != before:
            facts[key] = listed
    if facts:
        add_provenance(path, facts)


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many images the parts of a bundle lose to a take-down; all 0: nothing changes."""

    gallery: int = 0
    ood: int = 0
    """Number of lost images that the out-of-distribution check was fitted on."""
    refitted: bool = False
    """Whether the check is fitted again on the rest; otherwise it goes, if it loses images."""
    fingerprints: int = 0


def would_forget(path: Path, sha256s: Collection[str]) -> Forgotten:
    """Return what `forget` would take out of a bundle, and write nothing. Raises UserError."""
    return _without(open_bundle(path), sha256s)[0]


def forget(path: Path, sha256s: Collection[str]) -> Forgotten:
    """Take images out of a bundle's embedding index, OOD check and fingerprints, in one step.

    From the index and the check an image goes with all of its group: what shows the same lesion
    may be a copy that no hash finds. The check is fitted again on the rest, or goes where too few
    images are left. Detectors stay as they are in a check that holds no training image, only means
    over many (`pack.ood_features: calibration`), and so does that of version 0.1. Nothing is
    written where none of them is there. Raises UserError for no bundle.
    """
    forgotten, parts = _without(open_bundle(path), sha256s)
    if parts:
        replace_parts(path, parts)
    return forgotten


def _without(
    bundle: Bundle, sha256s: Collection[str]
) -> tuple[Forgotten, dict[str, LearnedPart | None]]:
    """Return what goes, and what is left of each part that loses images."""
    index, images, prints = bundle.gallery(), bundle.ood_images(), bundle.fingerprints()
    left: dict[str, LearnedPart | None] = {}
    shown = lost = known = 0
    if index is not None and (shown := len(index) - len(rest := index.without(sha256s))):
        left[GALLERY] = rest
    if prints is not None and (known := len(prints) - len(others := prints.without(sha256s))):
        left[FINGERPRINTS] = others
    if images is not None and (lost := int((~images.kept(sha256s)).sum())):
        spec, check = bundle.spec.ood, bundle.ood()
        left[OOD] = OodPart(spec, check, images).without(sha256s) if spec and check else None
    return Forgotten(shown, lost, left.get(OOD) is not None, known), left


def clear_leftovers(path: Path) -> None:
    """Finish or undo what a kill cut short while the bundle was written again.

    An unfinished copy holds an older embedding index with the removed images. Call this only while
    nothing else writes the bundle.
    """
    path = path.resolve()
    finish_folder(path, INDEX)
    mine = re.compile(re.escape(path.name) + r"\.tmp-[a-z0-9_]{8}(\.old)?")
    around = path.parent.iterdir() if path.parent.is_dir() else ()
    unfinished = sorted(path for path in around if mine.fullmatch(path.name))
    if not path.exists():  # killed between the two renames: the older one is whole
        for old in (path for path in unfinished if path.suffix == ".old"):
            old.replace(path)
    within = path.iterdir() if path.is_dir() else ()
    for rest in (*unfinished, *(other for other in within if is_unfinished(other.name))):
        shutil.rmtree(rest, ignore_errors=True)
