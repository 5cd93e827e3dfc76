"""What makes a member's steps others than those of the same network with the defaults."""

import hashlib
import json
from typing import Any

from skindx.models.classifier.classifier import ClassifierSettings
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings, TrainSettings

_OF_RECIPE = ("optimizer", "loss", "augment", "mix", "ema")
"""Parts of a recipe that take time in each step; all others only change what is computed."""

_LONGEST = 160


def variant_of(settings: TrainSettings, member: MemberSettings) -> str:
    """Return all that costs time or memory and differs from the defaults, as `key=value, ...`.

    Model, side of the images and batch have places of their own in a trace. Empty: the defaults.
    """
    recipe = settings.recipe_of(member)
    parts = {
        key: getattr(member, key)
        for key, field in ClassifierSettings.model_fields.items()
        if key not in ("model", "preprocess") and getattr(member, key) != _default(field)
    }
    if member.trunk != "trained":
        parts["trunk"] = member.trunk
    if member.trunk == "lora":
        parts["lora"] = member.lora
    if member.targets:
        parts["targets"] = True
    for key in _OF_RECIPE:
        value = getattr(recipe, key)
        if value != _default(Recipe.model_fields[key]):
            parts[f"recipe.{key}"] = value
    text = ", ".join(f"{key}={_plain(value)}" for key, value in sorted(parts.items()))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.sha256(text.encode()).hexdigest()[:12]})"


def _default(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _plain(value: Any) -> str:
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return json.dumps(plain, sort_keys=True, default=str).strip('"')
