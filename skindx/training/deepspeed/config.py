"""The settings that DeepSpeed gets: ours, above those of a user's JSON."""

import json
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings

_OURS = {
    "train_batch_size": "recipe.batch",
    "train_micro_batch_size_per_gpu": "recipe.batch",
    "gradient_accumulation_steps": "the recipe",
    "managed_gradient_accumulation": "the recipe",
    "gradient_clipping": "engine.gradient_clip",
    "fp16": "engine.precision",
    "bf16": "engine.precision",
    "amp": "engine.precision",
    "torch_autocast": "engine.precision",
    "optimizer": "the recipe",
    "scheduler": "the recipe",
    "compile": "engine.compile",
    "zero_optimization.stage": "engine.zero",
    "zero_optimization.offload_optimizer": "nothing: the recipe's optimizer runs on the device",
}
"""Key of the JSON -> where its value comes from instead."""


def read_extra(file: Path) -> dict[str, Any]:
    """Read a user's DeepSpeed JSON. Raises UserError for no JSON object, and for keys of ours."""
    try:
        extra = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"engine.deepspeed {file} does not exist; check the path.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"engine.deepspeed {file} cannot be read as JSON: {error}.") from None
    if not isinstance(extra, dict):
        raise UserError(f"engine.deepspeed {file} must hold an object, {{...}}.")
    zero = extra.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise UserError(f"engine.deepspeed {file}: 'zero_optimization' must be an object, {{...}}.")
    given = [*extra, *(f"zero_optimization.{key}" for key in zero)]
    for key in given:
        if key in _OURS:
            raise UserError(
                f"engine.deepspeed {file}: take {key!r} out; its place is {_OURS[key]}."
            )
    return extra


def read_extra_of(settings: EngineSettings) -> dict[str, Any]:
    """Return what `read_extra` returns for the JSON of these settings; nothing where none is."""
    return read_extra(settings.deepspeed) if settings.deepspeed else {}


def fingerprint_fields(settings: EngineSettings) -> dict[str, Any]:
    """Return what of the JSON decides the weights: all of it, where there is one."""
    return {"deepspeed": read_extra_of(settings)} if settings.deepspeed else {}


def deepspeed_config(settings: EngineSettings, batch: int, world: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a global batch of `batch` images."""
    extra = read_extra_of(settings)
    # Batches are cut unevenly where they must be: DeepSpeed only checks these products.
    micro = max(1, batch // world)
    config: dict[str, Any] = {
        "steps_per_print": 2**31,
        # SGD and LARS are not on DeepSpeed's list of optimizers that were tried with ZeRO.
        "zero_allow_untested_optimizer": True,
        # Its clock stops a GPU before and after each step; the history has the speed.
        "timers": {"throughput": {"enabled": False}},
        **extra,
        "train_batch_size": micro * world,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": 1,  # the engine says itself where a step ends
        "gradient_clipping": settings.gradient_clip,
        "zero_optimization": {**extra.get("zero_optimization", {}), "stage": settings.zero},
    }
    if settings.precision != "fp32":
        # `bf16.enabled` would cast BatchNorm's statistics as well; autocast leaves them alone.
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[settings.precision]
        config["torch_autocast"] = {"enabled": True, "dtype": dtype}
    return config
