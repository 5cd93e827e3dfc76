"""The wheel alone, without skindx-methods: what the kit brings is refused in one sentence."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from command_line import Skindx

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


def test_a_run_with_a_plan_goes_on_and_records_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: NOTHING)
    training: Any = object()
    assert recorded(training, tmp_path, "m") is training
