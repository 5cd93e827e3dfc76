"""The system below: no package reports home, optional packages, the user's cache folder."""

import importlib.util
import os
import sys
from pathlib import Path

from skindx.errors import UserError

_QUIET = {
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_VERBOSE": "false",
    # No eval of what a model's YAML says; our own check comes first.
    "ULTRALYTICS_SAFE_LOAD": "true",
    # With a key ultralytics streams every training run to its makers' platform.
    "ULTRALYTICS_API_KEY": "",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "SCARF_NO_ANALYTICS": "true",
    # ONNX Runtime reports to Microsoft from a thread of its own, newer ones on Linux too.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_HUB = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def go_offline() -> None:
    """Set the variables that the packages read at import; HF_HUB_OFFLINE=0 asks for the model hub.

    Call it at every entry point, before timm, albumentations, ultralytics or gradio is imported.
    """
    os.environ.update(_QUIET)
    # Our own settings for ultralytics: the user's may hold a key, and are not ours to change.
    os.environ.setdefault("YOLO_CONFIG_DIR", str(cache_folder()))
    # OpenVINO tells its makers of every import, and no variable stops it; without the package
    # that does so it takes a stand-in that is silent.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    for name, value in _HUB.items():
        os.environ.setdefault(name, value)  # a user who wants the hub has set it to 0


def cache_folder() -> Path:
    """Return the user's folder for what can be made or fetched again."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "skindx"


def missing_modules(*modules: str) -> list[str]:
    """Return the top-level modules that are not installed; nothing is imported."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def require_extra(extra: str, *modules: str, purpose: str, otherwise: str = "") -> None:
    """Raise UserError when a module of an optional dependency group is not installed.

    `purpose` begins the sentence ("the server"), `otherwise` ends it (", or set detector=null").
    """
    if missing := missing_modules(*modules):
        raise UserError(
            f"{purpose} needs {', '.join(missing)}, which is not installed; "
            f"run `pip install 'skindx[{extra}]'`{otherwise}."
        )
