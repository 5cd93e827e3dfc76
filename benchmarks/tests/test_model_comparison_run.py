import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import save_file

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx_bench.train.model_comparison import SMALLEST, Config, run


@pytest.mark.long
@pytest.mark.distributed
def test_from_a_dataset_to_the_table(small_dataset: Path, tmp_path: Path) -> None:
    start = build_classifier(ClassifierSettings(model="test_resnet"), 3).net.state_dict()
    save_file(start, tmp_path / "start.safetensors")
    settings = {
        "engine": {"accelerator": "cpu", "ranks": 2},
        "recipe": {"epochs": 2, "batch": 15},
        "members": [
            {"name": "a", "model": "test_resnet", "preprocess": {"size": 64}},
            {"name": "b", "model": "test_efficientnet", "preprocess": {"size": 64}},
            {
                "name": "head",
                "model": "test_resnet",
                "preprocess": {"size": 64},
                "trunk": "frozen",
                "weights": str(tmp_path / "start.safetensors"),
            },
        ],
    }
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump(settings))
    sets = [f"dataset={small_dataset}", f"config={tmp_path}/zoo.yaml", f"out={tmp_path}/out"]
    config = Config.load(None, [*SMALLEST, *sets, "use=[0, 2]", "together=true"])
    result = run(config)
    assert list(result.models) == ["a", "b", "head", "ensemble"]
    for key in ("curve_gain_3", "disagreement", "error_correlation", "gain_limit"):
        assert np.isfinite(result.figures[key].value)
    gain = result.figures["chosen_minus_better_member_balanced"]
    assert gain.spread[0] < gain.value < gain.spread[1]
    lines = (tmp_path / "out" / "curve.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 + 2 + 1  # at most two subsets of a size
    assert (tmp_path / "out" / "curve.png").exists()
    result.to_json(tmp_path / "zoo.json")
    written = json.loads((tmp_path / "zoo.json").read_text())["models"]["a"]
    assert written["parameters"] > 1000
    assert written["flops"] > 1e6
    assert 0 <= written["balanced_accuracy"]["mean"] <= 1
    assert len(written["balanced_accuracy"]["folds"]) == 2
    before = (tmp_path / "out" / "fold-0" / "run" / "members" / "a" / "member.json").stat()
    assert run(config).models["a"]["balanced_accuracy"] == result.models["a"]["balanced_accuracy"]
    after = (tmp_path / "out" / "fold-0" / "run" / "members" / "a" / "member.json").stat()
    assert after.st_mtime_ns == before.st_mtime_ns
