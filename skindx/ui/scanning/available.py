"""Whether a server can scan with its bundle, and if not, why."""

from skindx.core.machine import how_to_install, missing_modules
from skindx.models.bundle.bundle import Bundle
from skindx.ui.scanning.errors import NoScans

_EXTRAS = {"scan": ("pyvips", "sqlalchemy", "zarr"), "detect": ("ultralytics",)}


def why_no_scans(bundle: Bundle) -> NoScans | None:
    """Return why a server of this bundle cannot scan; None: it can."""
    if bundle.spec.detector is None:
        return NoScans(
            409,
            "the bundle of this server has no detector, so it cannot find lesions on a wide photo; "
            "ask for a diagnosis of a photo of each lesion.",
        )
    for extra, modules in _EXTRAS.items():
        if missing := missing_modules(*modules):
            return NoScans(
                501,
                f"this server cannot scan, because {', '.join(missing)} is not installed; its "
                f"operator can run {how_to_install(extra)}.",
            )
    return None
