"""Fingerprints with what they were made of, so that a refusal can name what differs."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.core.text import MADE_FROM, differences

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


def otherwise(folder: Path, found: Mapping[str, Any], expected: str) -> UserError:
    """Return the error of what was made by other settings or data, which it names.

    `found` holds what `made_from` gave then.
    """
    now = made_from(expected).get(MADE_FROM, {})
    what = differences(found.get(MADE_FROM), now, _NAMES)
    return UserError(
        f"{folder} was trained with other settings or data ({what}); "
        "give another --out, or remove that folder to train it again."
    )
