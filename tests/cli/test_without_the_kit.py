"""The wheel alone, without skindx-methods: what the kit brings is refused in one sentence."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Skindx
from tiny_dataset import jpeg, skin
from without_kit import environment

from skindx.training.registry import recorded  # families read entry points before they are hidden

ROOT = Path(__file__).resolve().parents[2]

NOTHING = importlib.metadata.EntryPoints(())


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("plan",), "skindx plan"),
        (("plan", "--help"), "skindx plan"),
        (("plan", "make", "c.yaml", "data", "--write", "plan.yaml"), "skindx plan"),
        (("plan", "measure", "c.yaml", "data", "--out", "trace.json"), "skindx plan"),
        (("train", "data", "--out", "run", "--plan", "plan.yaml"), "skindx train --plan"),
    ],
)
def test_one_sentence_says_what_to_install_and_nothing_is_written(
    skindx: Skindx,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    what: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: NOTHING)
    code, printed, err = skindx(*arguments)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert err == (
        f"error: {what} needs skindx-methods, which is not installed; run `pip install "
        f"{ROOT / 'methods'}`.\n"
    )
    assert not list(tmp_path.iterdir())


def test_the_help_lists_the_verb_all_the_same(
    skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: NOTHING)
    code, printed, err = skindx("--help")
    assert (code, err) == (0, "")
    assert " plan " in printed


def test_a_first_training_is_estimated_all_the_same(tmp_path: Path) -> None:
    for number in range(12):
        file = tmp_path / "images" / ("acne", "rosacea")[number % 2] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(skin(number)))
    words = ("new", "images", "--out", "run", "--effort", "quick", "--network", "test_resnet")
    done = subprocess.run(
        [sys.executable, "-m", "skindx", *words, "--yes"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" of memory") == 3


def test_a_run_with_a_plan_goes_on_and_records_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: NOTHING)
    training: Any = object()
    assert recorded(training, tmp_path, "m") is training


SETTINGS = """
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings

assert TrainSettings.parse({"engine": {"elastic": None}}).engine.run_method == ""
for change in ({"engine": {"elastic": {}}}, {"exchange": {"kind": "local"}}):
    try:
        TrainSettings.parse(change)
    except UserError as error:
        print(error)
"""


def test_a_setting_that_names_a_method_is_refused_unless_it_is_null() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    elastic, local = done.stdout.splitlines()
    how = f"needs skindx-methods, which is not installed; run `pip install {ROOT / 'methods'}`."
    assert elastic.endswith(f"engine setting 'elastic' {how}")
    assert local.endswith(f"exchange 'local' {how}")
