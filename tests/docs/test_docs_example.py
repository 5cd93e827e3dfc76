"""The example of "Your own images in 30 minutes" runs as the page says, from folder to answers."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from command_line import Skindx
from guide_pages import ROOT, shell_blocks

from skindx.data.manifest import read_manifest

PAGE = ROOT / "docs/start/images.md"
FIXTURE = ROOT / "tests/fixtures/v0_2/dataset"
SMALL = "members=[{name: first, model: test_resnet, preprocess: {size: 32}}]"
"""In the place of the page's networks, whose weights are not here; their settings are read."""
SHORT = {"train": ("--set", SMALL, "--set", "recipe={epochs: 1, batch: 8}")}


# A busy machine may not end the server of decoding processes in the second that it is given.
@pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning")
def test_the_example_runs_from_folder_to_answers(
    tmp_path: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skindx.training.config.run import TrainSettings

    monkeypatch.chdir(tmp_path)
    for record in read_manifest(FIXTURE):
        folder = Path("my/images") / record.label
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(FIXTURE / record.path, folder)
    [config] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    Path("my.yaml").write_text(config, encoding="utf-8")
    assert len(TrainSettings.load(Path("my.yaml"), []).members) == len(
        yaml.safe_load(config)["members"]
    )
    blocks = [block for block in shell_blocks() if block.page == PAGE and block.walks]
    steps = [words for block in blocks for words in block.commands()]
    assert [words[0] for words in steps] == ["build", "gallery", "train", "evaluate", "diagnose"]
    for words in steps:
        code, _, err = skindx(*words, *SHORT.get(words[0], ()))
        assert code == 0, err
    for named in re.findall(r"[Oo]pen `([^`]+)`", PAGE.read_text(encoding="utf-8")):
        assert Path(named).is_file(), named
    assert json.loads(Path("runs/mine/bundle/bundle.json").read_text())["members"]
    with Path("answers.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(list(Path("my/images/Nevus").iterdir()))
