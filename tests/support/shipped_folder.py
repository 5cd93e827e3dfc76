"""A folder of a tiny detector that stands alone."""

import json
import shutil
from pathlib import Path
from typing import Any

from forged_bundle import WHOLE

from skindx.core.atomic_files import sha256_file
from skindx.models.detector import MODEL_WEIGHTS, MODEL_YAML
from skindx.models.shipped_detector import INDEX

PLANTED = {"photos": 10, "lesions": 200, "found": 194, "least_px": 20, "most_px": 200}


def shipped(folder: Path, **changes: Any) -> Path:
    """Return the folder of a tiny detector whose index names its files as they are."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for name in (MODEL_YAML, MODEL_WEIGHTS):
            shutil.copy(WHOLE / "detector" / name, folder / name)
    files = {name: sha256_file(folder / name) for name in (MODEL_YAML, MODEL_WEIGHTS)}
    index = {
        "format": 1,
        "name": "tiny",
        "spec": {"size": 64, "confidence": 0.3},
        "learned_from": "Tiles.",
        "licence": "CC BY-NC 4.0",
        "planted": PLANTED,
        "files": files,
        **changes,
    }
    (folder / INDEX).write_text(json.dumps(index))
    return folder
