"""Every name that is gone answers in one sentence, whatever stands beside it; the changelog too."""

import re
from pathlib import Path

import pytest
import typer
from command_line import Skindx
from stable_names import ROOT, stable_names

from skindx.cli import app
from skindx.cli.options import KNOWN, complete
from skindx.core.errors import UserError
from skindx.core.removed_names import REMOVED
from skindx.core.settings_base import Settings
from skindx.data.recipe import BuildSettings
from skindx.training.config.run import TrainSettings

VERBS = [name.removeprefix("verb ") for name in REMOVED if name.startswith("verb ")]
KEYS = [name for name in REMOVED if not name.startswith("verb ")]
ROOTS: dict[str, type[Settings]] = {"recipe": BuildSettings, "train": TrainSettings}
WORDS = {"distillation": "distil", "layers split by operators": "operators"}
"""What the changelog calls some of them."""


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_or_option_that_is_gone_says_what_to_do(name: str, skindx: Skindx) -> None:
    verb, _, option = name.partition(" --")
    words = [*verb.split(), "no-such-folder"]
    if option:
        words += [f"--{option}", "--no-such-option"]
    verbs = typer.main.get_command(app)
    if verb in KNOWN:  # which another distribution brings
        complete(verbs, verb)
    group = verbs.commands.get(verb)  # type: ignore[attr-defined]
    if option and hasattr(group, "commands"):  # an option of each verb of the group
        words[1:2] = [next(iter(group.commands)), "x"]
    for given in (words, [*words[:-1], "--help"]) if option else (words, [*verb.split()]):
        code, _, problem = skindx(*given)
        assert code == 2, given
        said = " ".join(problem.split())
        assert said.startswith("error: ")
        assert REMOVED[f"verb {name}"].sentence("") in said
        assert said.endswith(f"{REMOVED[f'verb {name}'].instead}.")


@pytest.mark.parametrize("name", KEYS)
def test_a_key_or_value_that_is_gone_says_what_to_do(name: str, skindx: Skindx) -> None:
    root, _, key = name.partition(" ")
    path, _, value = key.replace("[]", ".0").partition("=")
    verb = {"recipe": "build", "train": "train"}[root]
    if "skindx-bench" not in REMOVED[name].instead:  # which may be installed here
        below = [f"{path}={value}", f"{path}.kind={value}"] if value else [f"{path}.a.b=1"]
        for given in below:
            code, _, problem = skindx(verb, "nowhere", "--set", given)
            assert (code, REMOVED[name].sentence("") in problem) == (
                2,
                True,
            ), given
        raw: object = value or {"a": 1}
        for part in reversed(path.split(".")):
            raw = [raw] if part == "0" else {part: raw}
        assert isinstance(raw, dict)
        with pytest.raises(UserError, match=r"file\.yaml: .*was removed in skindx .*") as caught:
            ROOTS[root].parse(raw, "file.yaml")
        assert f"{REMOVED[name].instead}." in str(caught.value)


def test_what_holds_nothing_changed_nothing() -> None:
    raw = {"soups": [], "distil": None, "members": [{"name": "a", "model": "a", "snapshots": 0}]}
    assert TrainSettings.parse(raw).members[0].name == "a"


def test_the_changelog_names_nothing_that_does_not_answer() -> None:
    text = Path(ROOT, "CHANGELOG.md").read_text(encoding="utf-8")
    gone = re.search(r"- Gone, .*?:\n((?:  .*\n)+)", text)
    assert gone
    plain = re.sub(r"\([^)]*\)", "", " ".join(gone[1].split()))
    items = re.split(r", | and |; ", re.sub(r"- (training|datasets): ", "", plain))
    assert len(items) > 15
    table = " ".join(REMOVED).lower()
    for item in items:
        word = WORDS.get(item.strip(" ."), item)
        last = re.findall(r"[A-Za-z0-9]+", word.replace(" export", "").lower())[-1]
        last = {"machines": "partition"}.get(last, last)  # crawls split over machines
        assert re.search(rf"\b{last}\b", table), item


def test_a_stable_name_is_not_among_them() -> None:
    assert not set(REMOVED) & {name.removeprefix("setting ") for name in stable_names()}
