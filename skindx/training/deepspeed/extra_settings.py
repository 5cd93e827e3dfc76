"""A user's DeepSpeed JSON, read by DeepSpeed before anything of a run is written."""

import difflib
import os
from typing import Any

from pydantic import ValidationError

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings, deepspeed_config, read_extra
from skindx.training.deepspeed.ranks import accelerator_variables, import_deepspeed
from skindx.training.parallel.mesh import resolve_accelerator

_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
_CLOSE = 0.8


class _Asked(dict[str, Any]):
    """Settings that remember which of them were asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.keys_asked.add(str(key))
        return super().__contains__(key)


def check_extra(settings: EngineSettings) -> None:
    """Raise UserError for a JSON that DeepSpeed would refuse, or of which it would miss a key."""
    if settings.deepspeed is None:
        return
    extra, file = read_extra(settings.deepspeed), f"engine.deepspeed {settings.deepspeed}"
    os.environ.update(accelerator_variables(resolve_accelerator(settings.accelerator)))
    make = import_deepspeed().DeepSpeedConfig
    asked = _Asked(deepspeed_config(settings, 2, 1))
    bare = settings.model_copy(update={"deepspeed": None})
    usual = make({**deepspeed_config(bare, 2, 1), "steps_per_print": 1})
    try:
        made = make(asked)
    except Exception as error:
        raise UserError(
            f"DeepSpeed cannot use the settings in {file} ({_reason(error)}); correct the file."
        ) from None
    for key, value in extra.items():
        kind, taken = type(getattr(usual, key, None)), getattr(made, key, None)
        fits = type(taken) in (int, float) if kind is float else type(taken) is kind
        if kind in _KINDS and not fits:
            raise UserError(
                f"in {file} the value of {key!r} is {value!r}, but must be {_KINDS[kind]}; "
                "correct the file."
            )
        like = difflib.get_close_matches(key, asked.keys_asked, 1, _CLOSE)
        if key not in asked.keys_asked and like:
            raise UserError(
                f"{file} has the key {key!r}, which DeepSpeed does not know; did you mean "
                f"{like[0]!r}?"
            )


def _reason(error: Exception) -> str:
    """Say what DeepSpeed has against it."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"][:1].lower() + first["msg"][1:]
        return f"{key!r} is {str(first.get('input'))[:80]!r}, and DeepSpeed says: {message}"
    if isinstance(error, ValueError | AssertionError) and str(error):
        return f"DeepSpeed says: {' '.join(str(error).split())[:200].rstrip('.')}"
    return "a value is of another kind than DeepSpeed reads there"
