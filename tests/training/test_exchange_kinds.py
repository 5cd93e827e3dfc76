"""One line of YAML chooses the exchange of a whole training."""

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from safetensors.numpy import load_file

from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.jobs import train
from skindx.training.launching.supervise import StopRequest
from skindx.training.parallel.mesh import leave

KINDS = ("dense", "fused", "topk", "gtopk", "hierarchical", "multicolor", "powersgd", "local")
SHORT = ("dense", "fused", "gtopk", "powersgd")
"""The others pass by the same code of loop and checkpoint."""
SGD = {"optimizer": "sgd", "learning_rate": 0.005, "weight_decay": 0}
FEW = {"density": 0.0001, "warmup": []}
SPARSE = {"topk": FEW, "gtopk": FEW, "local": {"steps": 2, "density": 0.01}}
EXACT = ("dense", "fused", "hierarchical", "multicolor")


def _settings(kind: str) -> TrainSettings:
    return TrainSettings.parse(
        {
            "engine": {"accelerator": "cpu"},
            "exchange": {"kind": kind, **SPARSE.get(kind, {})},
            "recipe": {"epochs": 1, "batch": 9, "accumulate": 2, **SGD},
            "members": [{"name": "a", "model": "test_resnet", "preprocess": {"size": 32}}],
            "detector": None,
            "loader": {"threads": 1},
        }
    )


def _train_all(dataset: Path, runs: Path, kinds: tuple[str, ...]) -> None:
    mesh = join(_settings("dense").engine)
    for kind in kinds:
        with StopRequest(30) as stop:
            train(runs / kind, dataset, _settings(kind), mesh, stop)
    leave()


@pytest.mark.distributed
@pytest.mark.parametrize(
    "kinds", [SHORT, pytest.param(KINDS, marks=pytest.mark.long)], ids=["some", "all"]
)
def test_every_kind_trains(kinds: tuple[str, ...], small_dataset: Path, tmp_path: Path) -> None:
    run_ranks(2, _train_all, small_dataset, tmp_path, kinds)
    weights: dict[str, Any] = {}
    for kind in kinds:
        folder = tmp_path / kind / "members" / "a"
        weights[kind] = load_file(folder / "model.safetensors")
        assert json.loads((folder / "member.json").read_text())["epoch"] == 1
    furthest = {
        kind: max(
            float(abs(each - weights["dense"][name]).max())
            for name, each in weights[kind].items()
            if "running" not in name
        )
        for kind in kinds
    }
    compressed = [far for kind, far in furthest.items() if kind not in EXACT]
    assert 3 * max(furthest[kind] for kind in EXACT if kind in kinds) < min(compressed), furthest
