"""skindx: images of skin become a dataset, a dataset an ensemble, an ensemble a diagnosis.

The names of `__all__` are the public interface; whatever is not in it is private and may change.
They are loaded when they are first used, so that `import skindx` costs nothing.
"""

import importlib
from typing import Any

__version__ = "0.2.0.dev0"

_HOMES = {
    "load": "skindx.api.model",
    "Model": "skindx.api.model",
    "Answer": "skindx.api.model",
    "UserError": "skindx.core.errors",
    "Refused": "skindx.diagnosis.photo_checks",
}

__all__ = ["Answer", "Model", "Refused", "UserError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Load a public name (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'skindx' has no attribute {name!r}; it has {__all__}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
