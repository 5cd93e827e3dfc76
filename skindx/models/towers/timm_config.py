"""timm's config.json: the architecture by timm's name, and how its images are prepared."""

from typing import Any

from skindx.core.errors import UserError

Network = tuple[dict[str, Any], dict[str, Any]]
"""The settings of a network without its preprocessing, and what is known of that."""


def timm_network(config: dict[str, Any], origin: str) -> Network:
    """Return the network of a config.json. Raises UserError for one that is not timm's."""
    cfg = config.get("pretrained_cfg", config)
    architecture = config.get("architecture")
    if not isinstance(architecture, str) or not isinstance(cfg, dict):
        hint = " (it is of transformers)" if "model_type" in config else ""
        raise UserError(
            f"{origin} names no architecture of timm{hint}; give a folder in the format of timm "
            "or open_clip."
        )
    arguments = config.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise UserError(f"{origin}: model_args is no mapping; copy the folder again.")
    arguments = {key: value for key, value in arguments.items() if value is not None}
    arguments.pop("num_classes", None)  # the dataset's own
    if arguments.pop("in_chans", 3) != 3:
        raise UserError(f"{origin}: the tower does not take colour images; choose another one.")
    return {"model": architecture, "model_args": arguments}, _preprocess(cfg, arguments)


def _preprocess(cfg: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    size = cfg.get("input_size")
    side = arguments.get("img_size") or (size[-1] if isinstance(size, list) and size else None)
    if side is not None:
        found["size"] = side[0] if isinstance(side, list) else side
    for key, name in (("mean", "mean"), ("std", "std"), ("crop_pct", "crop")):
        if cfg.get(key) is not None:
            found[name] = cfg[key]
    return found
