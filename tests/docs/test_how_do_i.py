"""The answers to *How do I …?* are true: one training runs with the blocks that fit together."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from guide_pages import ROOT

from skindx.diagnosis.predictor import Predictor
from skindx.training.config.run import TrainSettings

PAGE = ROOT / "docs/start/questions.md"
MEMBER = {"name": "a", "model": "test_resnet"}
NETWORK = """
import timm
from timm.models.resnet import ResNet, BasicBlock

{block}

def MyNetwork(classes):
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=classes, channels=(8, 16, 24, 32))
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for key, value in other.items():
        inner = isinstance(value, dict) and isinstance(both.get(key), dict)
        both[key] = merged(both[key], value) if inner else value
    return both


def test_there_are_twenty_answers_and_each_is_short() -> None:
    questions = PAGE.read_text(encoding="utf-8").split("\n## … ")[1:]
    assert len(questions) >= 20
    assert all(one.splitlines()[0].endswith("?") for one in questions)
    assert max(len(one.split()) for one in questions) <= 90


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.splitlines()[0])
def test_each_block_is_one_that_settings_take(block: str) -> None:
    TrainSettings.parse(merged({"members": [MEMBER]}, yaml.safe_load(block)))


def test_a_training_with_the_answers_that_fit_together(small_dataset: Path, tmp_path: Path) -> None:
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "my-weights.pth")
    package = tmp_path / "packages"
    info = package / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    [points] = blocks("toml")
    points = re.sub(r"\[.*\"(.*)\"\]", r"[\1]", points).replace('"', "")
    (info / "entry_points.txt").write_text(points)
    (package / "my_package").mkdir()
    code = NETWORK.format(block=blocks("python")[0])
    (package / "my_package" / "networks.py").write_text(code)

    settings: dict[str, Any] = {}
    for block in blocks("yaml"):
        part = yaml.safe_load(block)
        part.pop("folds", None)
        part.pop("members", None)
        settings = merged(settings, part)
    small = {"preprocess": {"size": 64}}
    settings["members"] = [
        {**MEMBER, "weights": "my-weights.pth", **small},
        {"name": "own", "model": "my_network", **small},
    ]
    settings["recipe"] |= {"epochs": 1}
    settings["engine"] |= {"accelerator": "cpu"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    command = ["train", str(small_dataset), "--config", "train.yaml", "--out", "run"]
    paths = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "skindx", *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    used = yaml.safe_load((tmp_path / "run/train.yaml").read_text())
    assert used["recipe"]["loss"]["kind"] == "focal"
    assert used["recipe"]["augment"]["pipeline"]["transform"]["__class_fullname__"] == "Compose"
    for member in ("a", "own"):
        history = (tmp_path / "run/members" / member / "history.csv").read_text().splitlines()
        assert len([*csv.DictReader(history)]) == 1
    assert list((tmp_path / "run").rglob("events.out.tfevents.*"))
    with pytest.raises(Exception, match="my_network"):  # which is installed for that training alone
        Predictor.load(tmp_path / "run/bundle")
