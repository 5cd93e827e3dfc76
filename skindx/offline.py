"""Nothing calls home: the environment that keeps third-party packages off the network."""

import os

_QUIET = {
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_VERBOSE": "false",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "SCARF_NO_ANALYTICS": "true",
}
_HUB = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def go_offline(*, hub: bool = False) -> None:
    """Set the variables that the packages read at import; `hub` leaves the model hub reachable.

    Call it at every entry point, before timm, albumentations, ultralytics or gradio is imported.
    """
    os.environ.update(_QUIET)
    if not hub:
        os.environ.update(_HUB)
