"""Towers as timm and open_clip write them: configuration and weights in the words of timm.

A tower of open_clip is a timm network by name (`timm_model_name`: SigLIP, ConvNeXt), or its own
vision transformer (CLIP; with an attention pool CoCa), which is timm's with a norm before its
blocks. What of a configuration is not known here is refused: a tower that is rebuilt nearly right
answers wrongly, and says nothing of it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_finite
from skindx.core.untrusted import MEGABYTE, read_json
from skindx.models.bounded_files import read_state
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.heads import head_place

_BASE = "vit_base_patch16_clip_224"
"""timm's vision transformer with a norm before its blocks; size, width and depth are set."""

_PLAIN = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio", "ls_init_value"}
_POOL = {"attentional_pool", "attn_pooler_queries", "attn_pooler_heads", "output_tokens"}
_HARMLESS = {
    # What matters in training alone, or names the default.
    *("patch_dropout", "timm_model_pretrained", "timm_drop", "timm_drop_path", "timm_proj"),
    *("timm_proj_bias", "freeze"),
}
_TIMM = {"timm_model_name", "timm_pool", "image_size"}
_DEFAULTS = {
    **{"no_ln_pre": False, "input_patchnorm": False, "global_average_pool": False},
    **{"final_ln_after_pool": False, "pool_type": "tok", "pos_embed_type": "learnable"},
    **{"n_queries": 256, "act_kwargs": None, "norm_kwargs": None, "block_type": None},
    **{"qk_norm": False, "scaled_cosine_attn": False, "scale_heads": False},
}


def open_clip_network(config: dict[str, Any], origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the network and what is known of its preprocessing. Raises UserError."""
    model = config.get("model_cfg")
    vision = model.get("vision_cfg") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vision, dict):
        raise UserError(
            f"{origin} has no model_cfg with a vision_cfg; copy the folder of the tower again."
        )
    prepared = config.get("preprocess_cfg")
    preprocess: dict[str, Any] = {"crop": 1.0}
    if isinstance(prepared, dict):
        preprocess |= {key: prepared[key] for key in ("mean", "std") if prepared.get(key)}
    size = vision.get("image_size", 224)
    side = size[0] if isinstance(size, list) and size else size
    preprocess["size"] = side
    if "timm_model_name" in vision:
        return _by_timm(vision, origin), preprocess
    return _by_open_clip(model, vision, side, origin), preprocess


def _by_timm(vision: dict[str, Any], origin: str) -> dict[str, Any]:
    _refuse_unknown(vision, _TIMM, origin)
    pool = vision.get("timm_pool") or ""
    if pool not in ("", "avg", "token", "map"):
        raise UserError(f"{origin} has the unknown pooling timm_pool={pool!r}; use another tower.")
    return {
        "model": str(vision["timm_model_name"]),
        "model_args": {"global_pool": pool} if pool else {},
    }


def _by_open_clip(
    model: dict[str, Any], vision: dict[str, Any], side: Any, origin: str
) -> dict[str, Any]:
    _refuse_unknown(vision, _PLAIN | _POOL, origin)
    layers, width = vision.get("layers", 12), vision.get("width", 768)
    head_width = vision.get("head_width", 64)
    whole = all(type(value) is int and value > 0 for value in (layers, width, head_width))
    if not whole or width % head_width:
        raise UserError(
            f"{origin} is not a vision transformer (layers={layers}, width={width}, "
            f"head_width={head_width}), and ResNets of open_clip are not supported; use another "
            "tower."
        )
    arguments: dict[str, Any] = {
        "img_size": side,
        "patch_size": vision.get("patch_size", 16),
        "depth": layers,
        "embed_dim": width,
        "num_heads": width // head_width,
    }
    if (ratio := vision.get("mlp_ratio")) is not None:
        arguments["mlp_ratio"] = ratio
    if (scale := vision.get("ls_init_value")) is not None:
        arguments["init_values"] = scale
    if model.get("quick_gelu"):
        arguments["act_layer"] = "quick_gelu"
    network: dict[str, Any] = {"model": _BASE, "model_args": arguments}
    pooling = vision.get("attentional_pool", False)
    if pooling not in (True, False):
        raise UserError(
            f"{origin} has the unknown pooling attentional_pool={pooling!r}; use another tower."
        )
    if pooling:
        network["attention_pool"] = {
            "width": model.get("embed_dim"),
            "heads": vision.get("attn_pooler_heads", 8),
        }
    return network


def _refuse_unknown(vision: dict[str, Any], known: set[str], origin: str) -> None:
    for key, value in vision.items():
        if key in known | _HARMLESS or (key in _DEFAULTS and value == _DEFAULTS[key]):
            continue
        raise UserError(
            f"{origin} has the setting vision_cfg.{key}={value!r}, which skindx does not support; "
            "use another tower."
        )


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
        raise UserError(
            f"{origin} describes a tower for images that are not in colour; use another tower."
        )
    return {"model": architecture, "model_args": arguments}, _preprocess(cfg, arguments)


def _preprocess(cfg: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    preprocess: dict[str, Any] = {}
    size = cfg.get("input_size")
    side = arguments.get("img_size") or (size[-1] if isinstance(size, list) and size else None)
    if side is not None:
        preprocess["size"] = side[0] if isinstance(side, list) else side
    for key, name in (("mean", "mean"), ("std", "std"), ("crop_pct", "crop")):
        if cfg.get(key) is not None:
            preprocess[name] = cfg[key]
    return preprocess


CONFIGS: dict[str, Literal["timm", "open_clip"]] = {
    "open_clip_config.json": "open_clip",
    "config.json": "timm",
}
"""File of a configuration -> its format. A repository of open_clip may hold both."""

WEIGHTS = {
    "open_clip": (
        *("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors"),
        "open_clip_pytorch_model.bin",
    ),
    "timm": ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth"),
}
"""Names of the file of weights, the first that is there counts; a safetensors file comes first."""

_LONGEST_CONFIG = 4 * MEGABYTE


@dataclass(frozen=True)
class TowerFolder:
    """Facts of a tower before its weights are read."""

    path: Path
    format: Literal["timm", "open_clip"]
    network: ClassifierSettings
    known: frozenset[str] = field(default_factory=frozenset)
    """Preprocessing by the configuration: size, mean and std where they are given."""

    def weights(self) -> Path:
        """Return the file of weights. Raises UserError for a folder without one."""
        for name in WEIGHTS[self.format]:
            if (self.path / name).is_file():
                return (self.path / name).resolve()
        raise UserError(
            f"{self.path} has no file of weights ({', '.join(WEIGHTS[self.format])}); copy the "
            "weights there, or set pretrained: false to start from random weights."
        )


def open_tower(path: Path) -> TowerFolder:
    """Read a tower's configuration. Raises UserError for a folder without one it understands."""
    if not path.is_dir():
        raise UserError(
            f"the folder {path} does not exist; give the folder of a tower as local-dir:FOLDER."
        )
    name = next((name for name in CONFIGS if (path / name).is_file()), None)
    if name is None:
        raise UserError(
            f"{path} is not the folder of a tower, because it has neither "
            f"{' nor '.join(CONFIGS)}; give a folder in the format of timm or open_clip."
        )
    origin = str(path / name)
    config = read_json((path / name).resolve(), _LONGEST_CONFIG)
    read = open_clip_network if CONFIGS[name] == "open_clip" else timm_network
    network, preprocess = read(config, origin)
    return TowerFolder(
        path,
        CONFIGS[name],
        _settings({**network, "preprocess": preprocess}, origin),
        frozenset(preprocess),
    )


def _settings(raw: dict[str, Any], origin: str) -> ClassifierSettings:
    try:
        return ClassifierSettings.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{origin} describes a network that skindx does not build ({where}: {message}); use "
            "another one."
        ) from None


_TRUNK, _VISUAL = "visual.trunk.", "visual."
_ATTENTION_POOL = "attn_pool."
_FAILS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What timm's filters raise for tensors of another network."""


def tower_state(tower: TowerFolder) -> dict[str, Tensor]:
    """Return the tensors of the tower's network, all of them but the head's.

    A position embedding of another size is resampled, as timm does it. Raises UserError for
    weights of another network.
    """
    file = tower.weights()
    given = read_state(file)
    net = build_classifier(tower.network, 1).net
    try:
        head = head_names(net)
        state = _renamed(given, net)
    except _FAILS as error:
        raise _unfit(tower, f"{type(error).__name__} while its tensors were renamed") from None
    expected = net.state_dict()
    wanted = {name: tensor for name, tensor in expected.items() if name not in head}
    missing = [name for name in wanted if name not in state]
    if missing:
        raise _unfit(
            tower, f"{len(missing)} of {len(wanted)} tensors are missing, such as {missing[0]}"
        )
    for name, tensor in wanted.items():
        loaded = state[name]
        if (
            loaded.shape != tensor.shape
            or not loaded.is_floating_point() == tensor.is_floating_point()
        ):
            raise _unfit(
                tower,
                f"the tensor {name} has the shape {tuple(loaded.shape)}, not {tuple(tensor.shape)}",
            )
    used = {name: state[name] for name in wanted}
    try:
        check_finite(used, "it")
    except UnfitStateError as error:
        raise _unfit(tower, str(error)) from None
    return {name: tensor.to(expected[name].dtype).contiguous() for name, tensor in used.items()}


def head_names(net: nn.Module) -> set[str]:
    """Return the names of the tensors of a timm network's last layer."""
    place = head_place(net)
    return {name for name in net.state_dict() if name.startswith(f"{place}.")}


def _renamed(given: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the image tower under the names of `net`."""
    if any(name.startswith(_TRUNK) for name in given):
        cut = {k.removeprefix(_TRUNK): v for k, v in given.items() if k.startswith(_TRUNK)}
        return _filtered(cut, net)
    pool = {}
    if any(name.startswith(_VISUAL + _ATTENTION_POOL) for name in given):
        pool = _pool_state(given)
        given = {
            name: tensor
            for name, tensor in given.items()
            if not name.startswith((_VISUAL + _ATTENTION_POOL, f"{_VISUAL}ln_post."))
        }
    if f"{_VISUAL}class_embedding" in given:
        given = {name: tensor for name, tensor in given.items() if name.startswith(_VISUAL)}
    return _filtered(dict(given), net) | pool


def _filtered(state: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Let timm's own filter of this architecture rename and resample what is of older layouts."""
    module = sys.modules[type(net).__module__]
    change = getattr(module, "checkpoint_filter_fn", None)
    if change is None:
        return state
    with torch.inference_mode():
        changed: dict[str, Tensor] = change(state, net)
    return {name: tensor.clone() for name, tensor in changed.items()}


def _pool_state(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return open_clip's attention pool under our names; see `QueryPool`."""
    start = _VISUAL + _ATTENTION_POOL
    pool = {
        _ATTENTION_POOL + name.removeprefix(start): tensor
        for name, tensor in given.items()
        if name.startswith(start)
    }
    pool[f"{_ATTENTION_POOL}query"] = pool[f"{_ATTENTION_POOL}query"][:1].clone()
    for part in ("weight", "bias"):
        pool[f"{_ATTENTION_POOL}norm.{part}"] = given[f"{_VISUAL}ln_post.{part}"]
    return pool


def _unfit(tower: TowerFolder, reason: str) -> UserError:
    return UserError(
        f"{tower.weights()} does not have the tensors of {tower.network.model!r}, which "
        f"{tower.path.name} describes ({reason}); copy the folder of the tower again."
    )
