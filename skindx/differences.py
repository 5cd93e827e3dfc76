"""Which of two sets of plain settings differ, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

MADE_FROM = "made_from"
"""The key of plain settings beside the fingerprint that was made of them."""

_MOST, _LONGEST = 3, 40


def differences(before: Any, now: Mapping[str, Any], names: Mapping[str, str] | None = None) -> str:
    """Return in words what of `now` was otherwise `before`: the keys, and short values.

    `names` gives other words to keys, or to all that stands below one; an empty one leaves it out.
    Without anything to compare with, as in what older versions wrote, that is said.
    """
    if not isinstance(before, Mapping):
        return "an older version wrote it, which did not keep which"
    every = (_words(path, old, new, names or {}) for path, old, new in _walk(before, now, ""))
    found = [words for words in dict.fromkeys(every) if words]
    first, more = found[:_MOST], len(found) - _MOST
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _walk(before: Any, now: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*now, *before]):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(before.get(key), now.get(key), below)
    elif before != now:
        yield path, before, now


def _words(path: str, old: Any, new: Any, names: Mapping[str, str]) -> str:
    shown = path
    for key, name in names.items():
        if path == key or path.startswith(f"{key}."):
            shown = f"{name}{path[len(key) :]}" if name else ""
            break
    if not shown:
        return ""
    was, is_now = ("none" if value is None else str(value) for value in (old, new))
    if " " in shown or max(len(was), len(is_now)) > _LONGEST:  # a hash, or a name in words
        return shown
    return f"{shown} was {was} and is {is_now}"
