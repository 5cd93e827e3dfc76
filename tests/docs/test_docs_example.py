"""The example of "Your own images in 30 minutes" runs as the page says, from folder to answers."""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import Skindx
from guide_pages import ROOT, shell_blocks

from skindx.data.manifest import read_manifest
from skindx.start import first_estimate
from skindx.training.config.run import TrainSettings

PAGE = ROOT / "docs/start/images.md"
FIXTURE = ROOT / "tests/fixtures/v0_2/dataset"
STEPS = ["new", "build", "train", "evaluate", "diagnose"]
SMALL = "members=[{name: first, model: test_resnet, preprocess: {size: 32}}]"
"""In the place of the page's networks, whose weights are not here; their settings are read."""
SHORT = {
    "new": ("--network", "test_resnet"),
    "train": ("--set", SMALL, "--set", "recipe={epochs: 1, batch: 8}"),
}


@pytest.mark.usefixtures("without_fingerprints")
# A busy machine may not end the server of decoding processes in the second that it is given.
@pytest.mark.filterwarnings(r"ignore:subprocess \d+ is still running:ResourceWarning")
def test_the_example_runs_from_folder_to_answers(
    tmp_path: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for record in read_manifest(FIXTURE)[::2]:
        folder = Path("my/images") / record.label
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(FIXTURE / record.path, folder)
    blocks = [block for block in shell_blocks() if block.page == PAGE and block.walks]
    steps = [words for block in blocks for words in block.commands()]
    assert [words[0] for words in steps] == STEPS
    monkeypatch.setattr(first_estimate, "BUDGET_S", 0.1)
    for words in steps:
        code, out, err = skindx(*words, *SHORT.get(words[0], ()))
        assert code == 0, err
        if words[0] == "new":  # prints the commands that the page has
            printed = [shlex.split(line) for line in re.findall(r"^  \d\. skindx (.+)$", out, re.M)]
            assert printed == steps[1:4]
    assert skindx()[1].splitlines()[-1] == "Next: skindx serve runs/mine/bundle"
    [member] = TrainSettings.load(Path("runs/mine/config.yaml"), []).members
    assert (member.trunk, member.pretrained) == ("frozen", True)
    for named in re.findall(r"[Oo]pen `([^`]+)`", PAGE.read_text(encoding="utf-8")):
        assert Path(named).is_file(), named
    assert json.loads(Path("runs/mine/bundle/bundle.json").read_text())["members"]
    with Path("answers.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(list(Path("my/images/Nevus").iterdir()))
