"""Write measured figures and the reference into README and guide: `python docs/render.py`.

A block between `<!-- NAME -->` and `<!-- end of NAME -->` is made from a JSON under docs/measured,
which a command wrote, and a page of docs/reference/generated from the code. `--check` changes
nothing, and fails where a block or a page is stale.
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
    clusters,
    crop,
    data,
    elsewhere,
    ensemble,
    folds,
    hardware,
    installation,
    real_skin,
    release,
    safety,
    scan,
    speed,
    statistics,
)
from blocks.texts import Load
from generators.pages import stale_pages

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs/measured"

CLEAN, CLUSTERS, CROP, HARDWARE, ISIC9, REAL_SKIN, REFUSED, SPEED = (
    f"docs/measured/{name}.md"
    for name in ("clean", "clusters", "crop", "hardware", "isic9", "real-skin", "refused", "speed")
)

RELEASED = ROOT / "models/ham10000/skindx_ham10000/release"
"""The release evaluation from which README and pages are rendered."""
RELEASE, AWAY = (str(RELEASED / name) for name in ("metrics.json", "external-isic9.json"))
"""Its test split, and other cameras."""
DETECTORS = "mahalanobis+image_mixture"
"""What of docs/measured/unknowns.json the released bundle refuses photos by."""

BLOCKS: dict[str, tuple[str, Callable[[Load], str]]] = {
    "headline": (
        "README.md",
        partial(
            release.headline,
            file=RELEASE,
            other=AWAY,
            unknown="unknowns.json",
            detectors=DETECTORS,
            folder=str(RELEASED.relative_to(ROOT)),
        ),
    ),
    "first hour": ("docs/start/images.md", speed.first_hour),
    "urgent errors": (
        "docs/clinicians/answers.md",
        partial(safety.urgent_errors, file=RELEASE, other=AWAY),
    ),
    "isic9 table": (ISIC9, accuracy.isic9_table),
    "isic9 figures": (ISIC9, accuracy.isic9_text),
    "ensemble members": (ISIC9, ensemble.ensemble_members),
    "ensemble targets": (ISIC9, ensemble.ensemble_targets),
    "ensemble curve": (ISIC9, ensemble.ensemble_curve),
    "ood choice": (REFUSED, accuracy.ood_choice),
    "ood camera": (REFUSED, accuracy.ood_camera),
    "modality": (REFUSED, accuracy.modality),
    "released": (REFUSED, partial(release.refusals, file="released.json")),
    "not skin": (REFUSED, data.not_skin),
    "audit alarms": (REFUSED, data.audit_alarms),
    "unusual": (REFUSED, data.unusual),
    "gates": (REFUSED, data.gates),
    "speed": (SPEED, speed.speed),
    "stages": (SPEED, speed.stages),
    "sparse": (SPEED, speed.sparse),
    "products": (SPEED, speed.products),
    "int8": (SPEED, speed.int8),
    "clean": (CLEAN, data.clean),
    "clean other": (CLEAN, data.clean_other),
    "copies scale": (CLEAN, data.copies_scale),
    "leak": (CLEAN, data.leak),
    "second photos": (CLEAN, data.second_photos),
    "wrong labels": (CLEAN, data.wrong_labels),
    "links": (CLEAN, data.links),
    "dicom import": (CLEAN, data.dicom_import),
    "energy": (HARDWARE, hardware.energy),
    "gpu": (HARDWARE, hardware.gpu),
    "devices": (HARDWARE, hardware.devices),
    "frameworks": (HARDWARE, hardware.frameworks),
    "container": (HARDWARE, hardware.container),
    "exchanges": (CLUSTERS, clusters.exchanges),
    "wires": ("docs/clusters/exchange.md", clusters.wires),
    "local steps": ("docs/clusters/exchange.md", clusters.local_steps),
    "elastic": (CLUSTERS, clusters.elastic),
    "forms": (CLUSTERS, clusters.forms),
    "forms bf16": (CLUSTERS, clusters.forms_bf16),
    "second order": (CLUSTERS, clusters.second_order),
    "hopping": (CLUSTERS, accuracy.hopping),
    "arithmetic": (CLUSTERS, data.arithmetic),
    "scans": ("docs/measured/scans.md", scan.scans),
    "scan planted": ("docs/measured/scans.md", scan.planted),
    "scan looks": ("docs/measured/scans.md", scan.looks),
    "scan comparison": ("docs/measured/scans.md", scan.comparisons),
    "looks": (REAL_SKIN, partial(real_skin.looks, split="ham10000 test")),
    "looks metadata": (
        REAL_SKIN,
        partial(real_skin.looks, split="ham10000 test", topic="metadata"),
    ),
    "looks drift": (REAL_SKIN, partial(real_skin.looks, split="ham10000 test", topic="drift")),
    "looks isic9": (ISIC9, partial(real_skin.looks, split="isic9 test")),
    "looks modality": (REFUSED, partial(real_skin.looks, split="modality sources")),
    "metadata": (REAL_SKIN, elsewhere.metadata),
    "ham10000 networks": (REAL_SKIN, partial(real_skin.networks, file="real-skin-ham10000.json")),
    "ham10000 ensembles": (
        REAL_SKIN,
        partial(
            real_skin.ensembles,
            file="real-skin-ham10000.json",
            subset="images that histology confirmed",
            target={"balanced_rule_accuracy": 75, "top1": 84},
        ),
    ),
    "calibration": (
        REAL_SKIN,
        partial(
            real_skin.calibration,
            files={
                "HAM10000": "real-skin-ham10000.json",
                "isic9": "real-skin-isic9.json",
                "fitzpatrick16": "real-skin-fitzpatrick16.json",
            },
        ),
    ),
    "fitzpatrick16 networks": (
        REAL_SKIN,
        partial(real_skin.networks, file="real-skin-fitzpatrick16.json"),
    ),
    "fitzpatrick16 ensembles": (
        REAL_SKIN,
        partial(
            real_skin.ensembles,
            file="real-skin-fitzpatrick16.json",
            subset="images of the smaller host",
        ),
    ),
    "ham10000 folds": (REAL_SKIN, partial(folds.out_of_fold, file="folds-ham10000.json")),
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
    "spectrum": (
        REAL_SKIN,
        partial(release.spectrum, file=RELEASE, folder=str(RELEASED.relative_to(ROOT))),
    ),
    "targets": (
        REAL_SKIN,
        partial(release.targets, file=RELEASE, other=AWAY, stated="released.json"),
    ),
    "classes": (REAL_SKIN, partial(release.classes, file=RELEASE)),
    "urgency": (REAL_SKIN, partial(safety.urgency, file=RELEASE)),
    "groups": (REAL_SKIN, partial(safety.groups, file=RELEASE)),
    "crop classes": (CROP, crop.classes),
    "crop ways": (CROP, crop.ways),
    "crop rivals": (CROP, crop.rivals),
    "hosts": (REAL_SKIN, real_skin.hosts),
    "elsewhere": (REAL_SKIN, partial(release.changes, file=AWAY)),
    "local images": ("docs/howto/evaluate.md", elsewhere.external),
    "coverage": ("docs/measured/intervals.md", statistics.coverage),
    "install": ("docs/project/licences.md", installation.sizes),
    "licences": ("docs/project/licences.md", installation.licences),
}
"""Block -> the file it stands in, and how it is made."""


def main(arguments: list[str]) -> int:
    """Render every block and page; return 1 where one is stale and `--check` is given."""
    check = "--check" in arguments
    stale = [file for file in sorted({file for file, _ in BLOCKS.values()}) if not _fresh(file)]
    pages = stale_pages(ROOT / "docs/reference", write=not check)
    if check:
        for file in (*stale, *(page.relative_to(ROOT) for page in pages)):
            print(f"{file} is stale; run python docs/render.py")
        return int(bool(stale or pages))
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
    release.one_bundle(text, file)
    return text


@cache
def _load(name: str) -> Mapping[str, Any]:
    written: Mapping[str, Any] = json.loads((MEASURED / name).read_text(encoding="utf-8"))
    return written


def _fresh(file: str) -> bool:
    return rendered(file) == (ROOT / file).read_text(encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
