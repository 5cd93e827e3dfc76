"""What decides a result, as a hash with its plain values, so that a refusal names what differs."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.core.text import MADE_FROM, differences
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST
from skindx.data.loader.settings import DiskCache, LoaderSettings
from skindx.training.config.engine import EngineSettings
from skindx.training.config.engine import fingerprint_fields as extra_fields
from skindx.training.config.run import MemberSettings, TrainSettings

_NAMES = {
    "member.recipe": "",  # it stands in recipe too
    "member": "members",
    "pixels": "loader.cache",
    "sharded": "loader.sharded",
    "redrawn": "loader.exchange",
    "manifest": "the dataset's manifest",
    "weights": "the content of the member's weights",
    **{
        key: f"engine.{key}"
        for key in ("precision", "gradient_clip", "sync_batch_norm", "partitions", "deepspeed")
    },
}
"""Part of a fingerprint -> its setting."""
_WITHOUT = {"exchange": {"kind": "dense"}}
"""What a fingerprint leaves out, for the engine does it by itself."""


class Fingerprint(str):
    """A hash, with the plain values that it was made of."""

    __slots__ = ("parts",)

    parts: dict[str, Any]


def fingerprint_of(parts: dict[str, Any]) -> Fingerprint:
    """Return the SHA-256 of plain values, whatever the order of their keys."""
    made = Fingerprint(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest())
    made.parts = parts
    return made


def made_from(expected: str) -> dict[str, Any]:
    """Return what is written beside a fingerprint, so that `otherwise` can say what differs."""
    return {MADE_FROM: expected.parts} if isinstance(expected, Fingerprint) else {}


def otherwise(folder: Path, made: Mapping[str, Any], expected: str) -> UserError:
    """Return the error of what was made by other settings or data, which it names.

    `made` holds what `made_from` gave then.
    """
    before, now = made.get(MADE_FROM), made_from(expected).get(MADE_FROM, {})
    if isinstance(before, Mapping):
        before, now = _WITHOUT | dict(before), _WITHOUT | now
    what = differences(before, now, _NAMES)
    return UserError(
        f"{folder} was trained with other settings or other data ({what}); give another --out, or "
        "delete that folder to train it again."
    )


# Fingerprints: hashes of everything that decides the weights of a member or the detector.
#
# A checkpoint or a finished member of another fingerprint is never taken for this one.


def fingerprint(settings: TrainSettings, member: MemberSettings, dataset: Path) -> Fingerprint:
    """Return the fingerprint of a member."""
    return fingerprint_of(
        {
            "member": _member_fields(settings, member),
            "recipe": settings.recipe_of(member).fingerprint_fields(),
            "pixels": _pixels(settings.loader),
            "sharded": settings.loader.sharded,
            "redrawn": settings.loader.redraws,
            **_engine_fields(settings.engine),
            **settings.exchange_fields(),
            "manifest": sha256_file(dataset / MANIFEST),
            "weights": _content(member.weights),
        }
    )


def _content(weights: Path | None) -> str | None:
    """Return the hash of starting weights; None where there are none, or not on this machine."""
    return sha256_file(weights) if weights and weights.is_file() else None


def detector_fingerprint(settings: TrainSettings, dataset: Path) -> Fingerprint:
    """Return the fingerprint of the run's detector."""
    assert settings.detector is not None
    return fingerprint_of(
        {
            "detector": settings.detector.model_dump(mode="json"),
            "pixels": settings.loader.cache.kind == "disk",
            "precision": settings.engine.precision,
            "gradient_clip": settings.engine.gradient_clip,
            **settings.exchange_fields(),
            "manifest": sha256_file(dataset / MANIFEST),
        }
    )


def _member_fields(settings: TrainSettings, member: MemberSettings) -> dict[str, Any]:
    """Return the settings of a member that decide its weights and which of them are saved."""
    parts = member.model_dump(mode="json", exclude={"views", "fold", "tower"})
    if member.recipe:
        parts["recipe"] = member.recipe.fingerprint_fields()
    if member.fold is not None:
        parts["fold"] = [member.fold, settings.folds]
    return parts


def _engine_fields(engine: EngineSettings) -> dict[str, Any]:
    """Return what of the engine decides the weights; what is left at its default is not in it."""
    parts: dict[str, Any] = {"precision": engine.precision, "gradient_clip": engine.gradient_clip}
    if engine.sync_batch_norm:
        parts["sync_batch_norm"] = True
    if engine.schedule_kind.partitioned:
        parts["partitions"] = engine.partitions
    return {**parts, **extra_fields(engine)}


def _pixels(loader: LoaderSettings) -> str:
    """Return what decides a crop's pixels: files give the same, in any format of storage."""
    cache = loader.cache
    return f"shrunk by {cache.margin}" if isinstance(cache, DiskCache) else "decoded"


def matches(file: Path, expected: str) -> bool:
    """True when `file` is there and carries the fingerprint.

    Raises UserError when it carries another one: two trainings must not be mixed in one run.
    """
    if not file.is_file():
        return False
    result = read_json(file, finite=False)
    if not is_same(result, expected):
        raise otherwise(file.parent, result, expected)
    return True


def is_same(made: Mapping[str, Any], expected: str) -> bool:
    """Tell whether a training was made as expected, wherever its starting weights lay then.

    They count by their content; where they are not at hand, by what was written when it was made.
    """
    before, now = made.get(MADE_FROM), made_from(expected).get(MADE_FROM)
    if made.get("fingerprint") == expected or not (isinstance(before, Mapping) and now):
        return bool(made.get("fingerprint") == expected)
    weights = now.get("weights") or before.get("weights")
    return _unplaced(before) == _unplaced({**now, "weights": weights})


def _unplaced(parts: Mapping[str, Any]) -> dict[str, Any]:
    member = parts.get("member", {})
    return {**parts, "member": {**member, "weights": bool(member.get("weights"))}}
