"""Build ultralytics' network from a checked configuration, never larger than its weights."""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.core.startup import light_imports
from skindx.models.detector.config import DetectorConfig
from skindx.models.detector.work import refuse_work
from skindx.models.shapes_only import shapes_only

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


def parse_config(raw: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return the model dictionary of a model.yaml. Raises UserError for what it may not say."""
    return DetectorConfig.parse(raw, origin, expand=False).plain()


def build_detection_model(
    config: dict[str, Any], labels: int, origin: str, shapes: Shapes | None = None
) -> "nn.Module":
    """Create ultralytics' DetectionModel with random weights.

    `config` comes from `parse_config`; `shapes` are those of the weights that the network is for.
    Raises UserError for layers that do not fit each other or the weights, or take too much work.
    """
    go_offline()
    with light_imports():
        from ultralytics.nn.modules import Conv
        from ultralytics.nn.tasks import DetectionModel

    activation = Conv.default_act
    try:
        _refuse_large(config, labels, origin, shapes)
        net: nn.Module = DetectionModel(deepcopy(config), nc=labels, verbose=False)
    except UserError:
        raise
    except Exception as error:  # whatever a layer raises for arguments that do not fit it
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UserError(
            f"{origin}: its layers do not fit each other ({reason}); correct it, or take a model "
            "such as yolov8n.yaml."
        ) from None
    finally:
        Conv.default_act = activation  # ultralytics leaves it changed where building fails
    return net


def _refuse_large(config: dict[str, Any], labels: int, origin: str, shapes: Shapes | None) -> None:
    """Build without memory, and raise UserError for a network that is not as its weights are."""
    from ultralytics.nn.tasks import parse_model

    with shapes_only():
        layers, _ = parse_model(deepcopy({**config, "nc": labels}), ch=3, verbose=False)
    if shapes is not None:
        own = {f"model.{name}": tuple(tensor.shape) for name, tensor in layers.state_dict().items()}
        if own != shapes:
            raise UserError(
                f"{origin} does not describe the network of the weights beside it; pack the "
                "bundle again."
            )
    refuse_work([*config["backbone"], *config["head"]], layers, origin)
