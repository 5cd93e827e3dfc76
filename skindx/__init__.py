"""skindx: images of skin become a dataset, a dataset an ensemble, an ensemble a diagnosis.

The names of `__all__` are the public interface; whatever is not in it is private and may change.
They are loaded when they are first used, so that `import skindx` costs nothing.

    model = skindx.load("runs/mine/bundle")           # Model: diagnose, predict, logits, networks
    answer = model.diagnose("photo.jpg", age=62)      # Answer: urgency, conformal_set, plot, pdf
    data = skindx.build("my/images", "runs/new/data")  # Dataset: splits, show, torch, hf
    trained = skindx.train(data, "runs/new")          # Model
    report = skindx.evaluate("runs/new/bundle", data)  # EvaluationReport: metrics, folder
"""

import importlib
from typing import Any

__version__ = "1.0.0"

_HOMES = {
    "skindx.api.dataset": ("Dataset", "open_dataset"),
    "skindx.api.model": ("Answer", "Model", "load"),
    "skindx.api.predictions": ("PhotoFeatures",),
    "skindx.api.verbs": ("EvaluationReport", "build", "evaluate", "train"),
    "skindx.core.errors": ("JobError", "UserError"),
    "skindx.data.recipe": ("BuildSettings",),
    "skindx.diagnosis.photo_checks": ("Refused",),
    "skindx.training.config.run": ("TrainSettings",),
}

__all__ = [  # noqa: PLE0604 - strings all the same
    "__version__",
    *(name for names in _HOMES.values() for name in names),
]


def __getattr__(name: str) -> Any:
    """Load a public name (PEP 562)."""
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(home), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'skindx' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
