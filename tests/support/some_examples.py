"""A folder of examples beside a bundle: made-up answers get one of them right, one wrong."""

import hashlib
from pathlib import Path
from typing import Any

import yaml
from painted_answers import jpeg

from skindx.taxonomy import load_taxonomy

CLASSES = load_taxonomy("isic9").classes
CREDIT = "A. Painter, CC BY-NC 4.0"


def write_examples(beside: Path, **change: Any) -> Path:
    """Write the folder beside a bundle and return it; `change` is of the second example."""
    folder = beside.parent / "examples"
    folder.mkdir(parents=True)
    rows = []
    for number, truth in enumerate((CLASSES[0].key, CLASSES[1].name), 1):
        photo = jpeg(640, 480, seed=70 + number)
        (folder / f"{number}.jpg").write_bytes(photo)
        row = {"file": f"{number}.jpg", "sha256": hashlib.sha256(photo).hexdigest()}
        rows.append(row | {"truth": truth, "truth_by": "histopathology", "credit": CREDIT})
    rows[1] |= {"note": "Its border is hard to see."} | change
    (folder / "examples.yaml").write_text(yaml.safe_dump(rows))
    return folder
