"""Write the measured figures into README and guide: `python docs/render.py`.

A block between `<!-- NAME -->` and `<!-- end of NAME -->` is made from a JSON under docs/measured,
which a command wrote. `python docs/render.py --check` changes nothing, and fails on a stale block.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from blocks import (
    accuracy,
    data,
    elsewhere,
    ensemble,
    hardware,
    installation,
    networks,
    real_skin,
    safety,
    scan,
    speed,
    statistics,
)
from blocks.texts import Load

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs/measured"

REAL_SKIN = "docs/measured/real-skin.md"

BLOCKS: dict[str, tuple[str, Callable[[Load], str]]] = {
    "headline": ("README.md", real_skin.headline),
    "isic9 table": ("docs/measured/isic9.md", accuracy.isic9_table),
    "isic9 figures": ("docs/measured/isic9.md", accuracy.isic9_text),
    "isic9 splits": ("docs/measured/isic9.md", accuracy.isic9_splits),
    "ensemble members": ("docs/measured/isic9.md", ensemble.ensemble_members),
    "ensemble targets": ("docs/measured/isic9.md", ensemble.ensemble_targets),
    "hopping": ("docs/howto/hopping.md", accuracy.hopping),
    "ensemble curve": ("docs/measured/isic9.md", ensemble.ensemble_curve),
    "ood choice": ("docs/measured/out-of-distribution.md", accuracy.ood_choice),
    "ood camera": ("docs/measured/out-of-distribution.md", accuracy.ood_camera),
    "modality": ("docs/measured/out-of-distribution.md", accuracy.modality),
    "not skin": ("docs/measured/not-skin.md", data.not_skin),
    "dicom import": ("docs/howto/dicom.md", data.dicom_import),
    "audit alarms": ("docs/measured/not-skin.md", data.audit_alarms),
    "unusual": ("docs/measured/not-skin.md", data.unusual),
    "gates": ("docs/measured/gates.md", data.gates),
    "model families": ("docs/measured/model-families.md", networks.model_families),
    "speed": ("docs/measured/speed.md", speed.speed),
    "stages": ("docs/measured/speed.md", speed.stages),
    "clean": ("docs/measured/clean.md", data.clean),
    "clean other": ("docs/measured/clean.md", data.clean_other),
    "copies scale": ("docs/measured/clean.md", data.copies_scale),
    "leak": ("docs/measured/clean.md", data.leak),
    "second photos": ("docs/measured/clean.md", data.second_photos),
    "wrong labels": ("docs/measured/clean.md", data.wrong_labels),
    "links": ("docs/measured/clean.md", data.links),
    "arithmetic": ("docs/explanation/scale.md", data.arithmetic),
    "energy": ("docs/measured/hardware.md", hardware.energy),
    "gpu": ("docs/measured/hardware.md", hardware.gpu),
    "devices": ("docs/measured/hardware.md", hardware.devices),
    "frameworks": ("docs/measured/hardware.md", hardware.frameworks),
    "container": ("docs/measured/hardware.md", hardware.container),
    "exchanges": ("docs/measured/speed.md", speed.exchanges),
    "elastic": ("docs/howto/cluster.md", speed.elastic),
    "forms": ("docs/explanation/parallel.md", speed.forms),
    "forms bf16": ("docs/explanation/parallel.md", speed.forms_bf16),
    "second order": ("docs/explanation/second-order.md", speed.second_order),
    "sparse": ("docs/measured/speed.md", speed.sparse),
    "products": ("docs/measured/speed.md", speed.products),
    "scans": ("docs/measured/scans.md", scan.scans),
    "scan comparison": ("docs/measured/scans.md", scan.comparisons),
    "int8": ("docs/howto/export.md", speed.int8),
    "metadata": (REAL_SKIN, elsewhere.metadata),
    "ham10000 networks": (REAL_SKIN, partial(real_skin.networks, file="real-skin-ham10000.json")),
    "ham10000 ensembles": (
        REAL_SKIN,
        partial(
            real_skin.ensembles, file="real-skin-ham10000.json", asked={"balanced": 75, "top1": 84}
        ),
    ),
    "fitzpatrick16 networks": (
        REAL_SKIN,
        partial(real_skin.networks, file="real-skin-fitzpatrick16.json"),
    ),
    "fitzpatrick16 ensembles": (
        REAL_SKIN,
        partial(real_skin.ensembles, file="real-skin-fitzpatrick16.json"),
    ),
    "ham10000 curve": (REAL_SKIN, partial(real_skin.curve, file="real-skin-ham10000.json")),
    "fitzpatrick16 curve": (
        REAL_SKIN,
        partial(real_skin.curve, file="real-skin-fitzpatrick16.json"),
    ),
    "fitzpatrick16 groups": (
        REAL_SKIN,
        partial(safety.groups, file="real-skin-fitzpatrick16.json", within="frozen"),
    ),
    "unknowns": (REAL_SKIN, elsewhere.unknowns),
    "drift": (REAL_SKIN, elsewhere.drift),
    "urgency": (REAL_SKIN, safety.urgency),
    "groups": (REAL_SKIN, safety.groups),
    "crop": (REAL_SKIN, safety.crop),
    "hosts": (REAL_SKIN, real_skin.hosts),
    "elsewhere": (REAL_SKIN, elsewhere.external),
    "install": ("docs/project/licences.md", installation.sizes),
    "licences": ("docs/project/licences.md", installation.licences),
    "coverage": ("docs/explanation/statistics.md", statistics.coverage),
}
"""Block -> the file it stands in, and how it is made."""


def main(arguments: list[str]) -> int:
    """Render every block; return 1 where one is stale and `--check` is given."""
    stale = [file for file in sorted({file for file, _ in BLOCKS.values()}) if not _fresh(file)]
    if "--check" in arguments:
        for file in stale:
            print(f"{file} is stale; run python docs/render.py")
        return int(bool(stale))
    for file in stale:
        (ROOT / file).write_text(rendered(file), encoding="utf-8")
    return 0


def rendered(file: str) -> str:
    """Return a file's text with its blocks made again."""
    text = (ROOT / file).read_text(encoding="utf-8")
    for name, (where, make) in BLOCKS.items():
        if where != file:
            continue
        block = f"<!-- {name} -->\n{make(_load).strip()}\n<!-- end of {name} -->"
        pattern = re.compile(f"<!-- {name} -->.*?<!-- end of {name} -->", re.DOTALL)
        text, found = pattern.subn(lambda _, block=block: block, text)
        if found != 1:
            raise SystemExit(f"{file} must have one block {name}, it has {found}")
    return text


@cache
def _load(name: str) -> Mapping[str, Any]:
    written: Mapping[str, Any] = json.loads((MEASURED / name).read_text(encoding="utf-8"))
    return written


def _fresh(file: str) -> bool:
    return rendered(file) == (ROOT / file).read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
