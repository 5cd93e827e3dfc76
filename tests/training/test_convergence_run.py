from pathlib import Path
from typing import Any

import pytest
import yaml

from skindx.bench.convergence import Config, run
from skindx.errors import UserError


@pytest.mark.long
@pytest.mark.distributed
def test_from_a_dataset_to_the_verdict(small_dataset: Path, tmp_path: Path) -> None:
    study: dict[str, Any] = {
        "training": {
            "engine": {"accelerator": "cpu", "ranks": 2, "gradient_clip": 0},
            "recipe": {"epochs": 2, "batch": 12, "optimizer": "sgd"},
            "members": [{"name": "m", "model": "test_resnet", "preprocess": {"size": 64}}],
        },
        "arms": {"dense": {}, "sparse": {"exchange": {"kind": "gtopk", "density": 0.25}}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    config = Config(
        dataset=small_dataset,
        config=tmp_path / "study.yaml",
        out=tmp_path / "out",
        use=(1,),
        seeds=(0, 4),
        draws=50,
    )
    result = run(config)
    assert set(result.figures) == {"sparse_minus_dense_balanced", "sparse_minus_dense_top1"}
    assert [row["seed"] for row in result.models["sparse"]["runs"]] == [0, 4]
    result.to_json(tmp_path / "convergence.json")
    assert (tmp_path / "out" / "convergence.md").read_text().count("\n") == 9
    bundles = sorted((tmp_path / "out").glob("arms/*/*/run/bundle"))
    assert len(bundles) == 2
    before = [each.stat().st_mtime_ns for each in bundles]
    # Again, and nothing is trained or evaluated anew.
    again = run(config)
    assert again.figures == result.figures
    assert [each.stat().st_mtime_ns for each in bundles] == before
    study["training"]["recipe"]["epochs"] = 3
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match="was trained with other settings"):
        run(config)
