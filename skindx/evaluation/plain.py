"""Results as plain values for JSON."""

import dataclasses
import math
from typing import Any


def plain(value: Any) -> Any:
    """Return dataclasses as dicts, tuples as lists, and what is no finite number as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
