import json
from pathlib import Path

import pytest
import yaml

from skindx.bench.model_comparison.comparison import SMALLEST, Config, run


@pytest.mark.long
@pytest.mark.distributed
def test_from_a_dataset_to_the_table(small_dataset: Path, tmp_path: Path) -> None:
    settings = {
        "engine": {"accelerator": "cpu", "ranks": 2},
        "recipe": {"epochs": 2, "batch": 15},
        "members": [
            {"name": "a", "model": "test_resnet", "preprocess": {"size": 64}},
            {"name": "b", "model": "test_efficientnet", "preprocess": {"size": 64}},
        ],
    }
    (tmp_path / "zoo.yaml").write_text(yaml.safe_dump(settings))
    sets = [f"dataset={small_dataset}", f"config={tmp_path}/zoo.yaml", f"out={tmp_path}/out"]
    config = Config.load(None, [*SMALLEST, *sets, "use=[0, 2]"])
    result = run(config)
    assert list(result.models) == ["a", "b", "ensemble"]
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
