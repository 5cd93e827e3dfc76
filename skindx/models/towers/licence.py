"""The licence that a repository's card names."""

from pathlib import Path
from typing import Any

import yaml

from skindx.core.errors import UserError
from skindx.core.untrusted import read_plain

CARD = "README.md"
_FENCE = "---"


def card_licence(folder: Path) -> tuple[str, str]:
    """Return the licence and its address as the front matter of README.md has them, or "".

    The hub writes `license: other` where `license_name` and `license_link` say which.
    """
    file = (folder / CARD).resolve()
    if not file.is_file():
        return "", ""
    try:
        facts = _front_matter(read_plain(file).decode("utf-8", "replace"))
    except (UserError, yaml.YAMLError, ValueError, RecursionError):
        return "", ""
    name = facts.get("license")
    if isinstance(name, list):
        name = " or ".join(map(str, name))
    if name in (None, "other", "unknown"):
        name = facts.get("license_name") or name or ""
    return _line(name), _line(facts.get("license_link") or "")


def _front_matter(text: str) -> dict[str, Any]:
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return {}
    end = next((at for at, line in enumerate(lines[1:], 1) if line.strip() == _FENCE), 0)
    facts = yaml.safe_load("\n".join(lines[1:end]))
    return facts if isinstance(facts, dict) else {}


def _line(value: object) -> str:
    return " ".join(str(value).split())[:200]
