"""Fit the network that tells dermoscopic from clinical images, and measure it on other sources.

It is fitted on four fifths of HAM10000's lesions and of one host of Fitzpatrick17k; what is refused
is measured on the other lesions, on isic9's images that are not HAM10000's, on lesion photos with
boxes (dermoscopic, changed by their uploader) and on the other host. Every image is also tried at
another size, sharpness, light and compression: a check that reads the size of a file would then
fail.
"""

import csv
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.measurement import hardware, versions
from skindx.core.settings_base import Settings
from skindx.imaging.decode import decode
from skindx.imaging.photo_gates import (
    RATE,
    Floats,
    Kind,
    ModalityCheck,
    ModalityNetwork,
    modality_features,
)
from skindx.metrics import share_interval
from skindx_bench.harness.result import Figure, Result
from skindx_bench.honesty.gates_study import source_of
from skindx_bench.honesty.not_skin_study import compressed

# N = images, F = features

HOST = "dermaamin"
"""The host that is fitted on; the other one tests."""
NETWORKS, UNITS, PENALTY = 3, 16, 1.0
_SEED = 0
_LEAST = 66
"""Pixels of the shorter side of a changed image: the fewest that skindx reads."""

Pixels = NDArray[np.uint8]
Row = tuple[Path, str]
"""An image and its group."""


def ham(root: Path) -> list[Row]:
    """Return HAM10000's images by lesion."""
    folder = root / "ham10000"
    return [
        (folder / "images" / f"{row['image']}.jpg", row["lesion_id"])
        for row in table(folder / "index.csv")
    ]


def clinical(root: Path, *, fitted: bool) -> list[Row]:
    """Return the photos of the host that is fitted on, or of the other one, by case."""
    folder = root / "fitzpatrick17k_16"
    return [
        (folder / row["file"], row["group"])
        for row in table(folder / "index.csv")
        if (HOST in row["url"]) == fitted
    ]


def elsewhere(root: Path) -> list[Row]:
    """Return isic9's images that are not in HAM10000."""
    known = {row["image"] for row in table(root / "ham10000" / "index.csv")}
    named = ((file, re.search(r"ISIC_\d{7}", file.name)) for file in _files(root / "isic9"))
    return [(file, file.stem) for file, name in named if name is None or name.group() not in known]


def boxes(root: Path) -> list[Row]:
    """Return the photos with boxes; augmented copies share a source."""
    return [(file, source_of(file)) for file in _files(root / "boxes")]


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def table(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table. Raises UserError for none."""
    try:
        with file.open(newline="") as stream:
            return list(csv.DictReader(stream))
    except OSError:
        raise UserError(f"{file} is missing; set SKINDX_REAL to the folder of images.") from None


def changed(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return an image at another crop, size, sharpness, light and compression."""
    sides = np.array(pixels.shape[:2])
    share = rng.uniform(0.5, 1)
    size = np.maximum(1, (share * sides).astype(int))
    top, left = (int(rng.integers(0, most + 1)) for most in sides - size)
    part = pixels[top : top + size[0], left : left + size[1]]
    least = rng.uniform(_LEAST, max(_LEAST + 1, min(part.shape[:2])))
    scale = least / min(part.shape[:2])
    part = cv2.resize(part, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    gain = np.exp(rng.normal(0, 0.15, 3) + rng.normal(0, 0.2))
    lit = np.clip((part / 255.0) ** np.exp(rng.normal(0, 0.25)) * gain, 0, 1)
    part = cv2.GaussianBlur((lit * 255).astype(np.uint8), (0, 0), rng.uniform(0.1, 1.5))
    part = np.rot90(part, int(rng.integers(4)))
    return compressed(part, int(rng.integers(30, 95)))


@dataclass(frozen=True)
class Source:
    """Features of a source's images as they are, and of changed ones beside them."""

    plain_NF: Floats
    changed_VNF: tuple[Floats, ...]
    groups_N: NDArray[np.str_]

    @classmethod
    def read(cls, rows: Sequence[Row], most: int, views: int = 1) -> "Source":
        """Read up to `most` images, drawn by chance."""
        rng = np.random.default_rng(_SEED)
        chosen = [rows[n] for n in np.sort(rng.permutation(len(rows))[:most])]
        plain, others = [], []
        for file, _ in chosen:
            pixels = decode(file.read_bytes())
            plain.append(modality_features(pixels))
            others.append([modality_features(changed(pixels, rng)) for _ in range(views)])
        views_VNF = tuple(np.array(part) for part in zip(*others, strict=True))
        return cls(np.array(plain), views_VNF, np.array([group for _, group in chosen]))

    def of(self, mine_N: NDArray[np.bool_]) -> "Source":
        """Return some of the images."""
        parts = tuple(part_NF[mine_N] for part_NF in self.changed_VNF)
        return Source(self.plain_NF[mine_N], parts, self.groups_N[mine_N])

    def divided(self, share: float) -> tuple["Source", "Source"]:
        """Divide by group: about `share` of the groups, and the rest."""
        groups = np.unique(self.groups_N)
        order = np.random.default_rng(_SEED + 1).permutation(len(groups))
        mine_N = np.isin(self.groups_N, groups[order[: round(share * len(groups))]])
        return self.of(mine_N), self.of(~mine_N)


def fit(dermoscopic: Source, clinical: Source) -> ModalityNetwork:
    """Fit the mean of some networks of one hidden layer, which is again one."""
    from sklearn.neural_network import MLPClassifier

    parts = [np.concatenate([one.plain_NF, *one.changed_VNF]) for one in (dermoscopic, clinical)]
    all_NF = np.concatenate(parts)
    truth_N = np.repeat([0, 1], [len(part) for part in parts])
    mean_F, scale_F = all_NF.mean(axis=0), all_NF.std(axis=0)
    scaled_NF = np.clip((all_NF - mean_F) / scale_F, -4, 4)
    units: list[list[float]] = []
    bias = 0.0
    for seed in range(NETWORKS):
        network = MLPClassifier((UNITS,), alpha=PENALTY, max_iter=60, random_state=seed)
        network.fit(scaled_NF, truth_N)
        (first_FH, last_H1), (bias_H, bias_1) = network.coefs_, network.intercepts_
        rows_HF = np.column_stack([first_FH.T, bias_H, last_H1[:, 0] / NETWORKS])
        units += [[round(value, 5) for value in row] for row in rows_HF.tolist()]
        bias += float(bias_1[0]) / NETWORKS
    network = ModalityNetwork(
        mean=tuple(np.round(mean_F, 5).tolist()),
        scale=tuple(np.round(scale_F, 5).tolist()),
        hidden=tuple(tuple(unit) for unit in units),
        bias=round(bias, 5),
        medians={"dermoscopic": 0.0, "clinical": 0.0},
    )
    kinds: tuple[tuple[Kind, Source], ...] = (("dermoscopic", dermoscopic), ("clinical", clinical))
    medians = {kind: round(float(np.median(network.score(of.plain_NF))), 4) for kind, of in kinds}
    return network.model_copy(update={"medians": medians})


SMALLEST = ("most=40",)


class Config(Settings):
    """Images, and where the weights go."""

    real: Path = Field(default_factory=lambda: Path(os.environ.get("SKINDX_REAL", "real")))
    """Folder with ham10000, fitzpatrick17k_16, isic9 and boxes."""
    most: int = Field(6000, ge=40)
    """Images of each source, at most."""
    weights: Path | None = None
    """Where to write the weights; the package has its own as `skindx/imaging/modality.json`."""


def run(settings: Config) -> Result:
    """Fit, write the weights if asked to, and measure what is refused."""
    root, most = settings.real, settings.most
    ours_fit, ours_held = Source.read(ham(root), most).divided(0.7)
    theirs_fit, theirs_held = Source.read(clinical(root, fitted=True), most, views=5).divided(0.8)
    calibration, ours_test = ours_held.divided(0.5)
    network = fit(ours_fit, theirs_fit)
    made = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware(),
        "versions": versions(),
        "ham10000": len(ours_fit.groups_N),
        HOST: len(theirs_fit.groups_N),
    }
    if settings.weights:
        write_text(
            settings.weights, network.model_copy(update={"made": made}).model_dump_json() + "\n"
        )
    tests = {
        "ham10000": ours_test,
        "isic9 elsewhere": Source.read(elsewhere(root), most),
        "boxes": Source.read(boxes(root), most),
        "other host": Source.read(clinical(root, fitted=False), most),
    }
    figures: dict[str, Figure] = {}
    checks: dict[str, dict[str, Any]] = {}
    fitted_on: tuple[tuple[Kind, Source], ...] = (
        ("dermoscopic", calibration),
        ("clinical", theirs_held),
    )
    for kind, held in fitted_on:
        check = ModalityCheck.fit(kind, held.plain_NF, network)
        if check is None:
            continue
        for name, source in tests.items():
            for view, features_NF in (("", source.plain_NF), (" changed", source.changed_VNF[0])):
                share = share_interval(check.refused(features_NF, network), source.groups_N)
                figures[f"{kind} bundle, {name}{view}"] = Figure.of(share, "", len(features_NF))
        checks[kind] = check.model_dump()
    areas = _areas(network, tests)
    notes = (
        f"Fitted on {made['ham10000']} images of HAM10000 and {made[HOST]} of {HOST}; thresholds "
        f"leave {RATE:.1%} of calibration images refused. `changed`: another crop, size, "
        "sharpness, light, and compression.",
    )
    return Result(
        "modality",
        figures,
        notes=notes,
        models={"checks": checks, "auroc": areas},
        headings=("refused", "95 % interval"),
    )


def _areas(network: ModalityNetwork, tests: dict[str, Source]) -> dict[str, float]:
    """Return the AUROC of each dermoscopic source against the other host, plain and changed."""
    from sklearn.metrics import roc_auc_score

    views: dict[str, Callable[[Source], Floats]] = {
        "": lambda source: source.plain_NF,
        " changed": lambda source: source.changed_VNF[0],
    }
    areas = {}
    for view, of in views.items():
        other_N = network.score(of(tests["other host"]))
        for name in list(tests)[:-1]:
            mine_N = network.score(of(tests[name]))
            truth_N = np.repeat([0, 1], [len(mine_N), len(other_N)])
            areas[f"{name}{view}"] = float(
                roc_auc_score(truth_N, np.concatenate([mine_N, other_N]))
            )
    return areas
