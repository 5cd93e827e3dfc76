"""Which people and which sources some images are of: counts by what the manifest knows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skindx.data.manifest import Record

UNKNOWN = "not known"
REST = "others"
SKIN_TYPES = ("I", "II", "III", "IV", "V", "VI")
_MOST = 20
"""Values that are counted by name; of more, such as one address an image, the rest is one."""

COUNTED = {
    "label": "class",
    "skin_type": "skin type",
    "age": "age",
    "sex": "sex",
    "site": "site",
    "confirmed_by": "label confirmed by",
    "source": "source",
    "licence": "licence",
}
"""Fields of a record that are counted, and what they are called."""


def count_images(records: Sequence[Record]) -> dict[str, Any]:
    """Return `images`, `groups`, and for each field its values' images; the unknown are counted.

    Values stand by falling count, `not known` last; ages are bands of twenty years.
    """
    counts: dict[str, Any] = {
        "images": len(records),
        "groups": len({record.group for record in records}),
    }
    for field in COUNTED:
        values = (_value(field, getattr(record, field)) for record in records)
        counts[field] = _by_count(values)
    return counts


def _value(field: str, value: Any) -> str:
    if value is None or value == "":
        return UNKNOWN
    if field == "skin_type":
        return SKIN_TYPES[value - 1]
    if field == "age":
        low = min(int(value) // 20 * 20, 80)
        return f"{low} and more" if low == 80 else f"{low} to {low + 19}"
    return str(value)


def _by_count(values: Iterable[str]) -> dict[str, int]:
    ranked = Counter(values).most_common()
    known = [(value, n) for value, n in ranked if value != UNKNOWN]
    kept, rest = known[:_MOST], sum(n for _, n in known[_MOST:])
    unknown = dict(ranked).get(UNKNOWN, 0)
    return dict(kept) | ({REST: rest} if rest else {}) | ({UNKNOWN: unknown} if unknown else {})


def counts_text(counts: Mapping[str, int]) -> str:
    """Write counts as a list: 'II 30, IV 4, not known 7'."""
    return ", ".join(f"{value} {n:,}" for value, n in counts.items())
