"""A dataset that was built before a setting existed keeps what it did, unless the user sets it.

So does one that was built with that value: else the next build after the first would change it.
"""

from pathlib import Path
from typing import Any

from skindx.core.settings_base import read_yaml
from skindx.data.layout import RECIPE
from skindx.data.recipe import BuildSettings

BEFORE: dict[tuple[str, str], Any] = {("screen", "not_skin"): "off"}
"""Keys of the recipe -> the value that is as if the setting were not there."""


def as_before(settings: BuildSettings, out: Path) -> tuple[BuildSettings, list[str]]:
    """Return the settings for a rebuild of `out`, and a note for each that stays as it was.

    `out` need not exist; only a recipe that a build left there counts, not the user's own.
    """
    recipe = out / RECIPE
    if not recipe.exists():
        return settings, []
    stored, notes = read_yaml(recipe), []
    for (part, key), value in BEFORE.items():
        own, then = getattr(settings, part), stored.get(part)
        changed = isinstance(then, dict) and then.get(key, value) != value
        if changed or key in own.model_fields_set or getattr(own, key) == value:
            continue
        new = getattr(own, key)
        settings = settings.model_copy(update={part: own.model_copy(update={key: value})})
        notes.append(
            f"{part}.{key} stays {value}, as {out.name} was built; --set {part}.{key}={new} "
            f"switches it on."
        )
    return settings, notes
