import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx_bench.train.convergence import SMALLEST, Config, run

SPARSE: dict[str, Any] = {"kind": "gtopk", "density": 0.01, "warmup": []}
STEPS = 2 * 4  # 45 images in batches of 12


def _moved(member: Path) -> torch.Tensor:
    """Tell which parameters of seed 4 are not where they started."""
    torch.manual_seed(4)
    start = build_classifier(ClassifierSettings(model="test_resnet"), 3).net.named_parameters()
    now = load_file(member / "model.safetensors")
    return torch.cat([(now[name] != each.detach()).flatten() for name, each in start])


@pytest.mark.long
@pytest.mark.distributed
def test_from_a_dataset_to_the_verdict(small_dataset: Path, tmp_path: Path) -> None:
    study: dict[str, Any] = {
        "training": {
            "engine": {"accelerator": "cpu", "ranks": 2, "gradient_clip": 0},
            # Decay and momentum move weights that no exchange has sent.
            "recipe": {
                "epochs": 2,
                "batch": 12,
                "optimizer": "sgd",
                "learning_rate": 0.1,
                "weight_decay": 0,
                "momentum": 0,
            },
            "members": [{"name": "m", "model": "test_resnet", "preprocess": {"size": 64}}],
        },
        "arms": {"dense": {}, "sparse": {"exchange": SPARSE}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    sets = [f"dataset={small_dataset}", f"config={tmp_path}/study.yaml", f"out={tmp_path}/out"]
    config = Config.load(None, [*SMALLEST, *sets, "seeds=[0, 4]"])
    result = run(config)
    assert set(result.figures) == {"sparse_minus_dense_balanced", "sparse_minus_dense_top1"}
    assert [row["seed"] for row in result.models["sparse"]["runs"]] == [0, 4]
    result.to_json(tmp_path / "convergence.json")
    assert (tmp_path / "out" / "convergence.md").read_text().count("\n") == 9
    bundles = sorted((tmp_path / "out").glob("arms/*/*/run/bundle"))
    assert len(bundles) == 2
    dense, sparse = (_moved(bundle.parent / "members" / "seed-4") for bundle in bundles)
    assert 0 < sparse.sum() <= STEPS * math.ceil(SPARSE["density"] * len(sparse))
    assert dense.sum() > 10 * sparse.sum()
    before = [bundle.stat().st_mtime_ns for bundle in bundles]
    # Again, and nothing is trained or evaluated again.
    again = run(config)
    assert again.figures == result.figures
    assert [bundle.stat().st_mtime_ns for bundle in bundles] == before
    study["training"]["recipe"]["epochs"] = 3
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match="was trained with other settings"):
        run(config)
