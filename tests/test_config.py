from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from skindx.config import Settings
from skindx.errors import UserError


class Folder(Settings):
    kind: Literal["folder"] = "folder"
    path: str


class Atlas(Settings):
    kind: Literal["atlas"] = "atlas"
    start: str = Field(pattern=r"^https?://[^/]+")


class Optimizer(Settings):
    learning_rate: float = Field(0.1, gt=0)


class Run(Settings):
    name: str = "run"
    optimizer: Optimizer = Optimizer()
    sources: tuple[Annotated[Folder | Atlas, Field(discriminator="kind")], ...] = ()
    wanted: tuple[str, ...] = Field(("a",), min_length=1)


def load(tmp_path: Path, text: str, *sets: str) -> Run:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return Run.load(file, sets)


def test_overrides_reach_nested_keys_and_list_items(tmp_path: Path) -> None:
    run = load(
        tmp_path,
        "sources: [{kind: folder, path: a}]",
        "optimizer.learning_rate=0.5",
        "sources.0.path=b",
    )
    assert run.optimizer.learning_rate == 0.5
    assert run.sources[0] == Folder(path="b")


def test_saved_settings_load_back_equal(tmp_path: Path) -> None:
    run = Run(name="x", sources=(Atlas(start="http://a"),))
    run.save(tmp_path / "resolved.yaml")
    assert Run.load(tmp_path / "resolved.yaml") == run


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Run().name = "y"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "sets", "said"),
    [
        ("optimiser: {}", [], r"unknown key 'optimiser'; did you mean 'optimizer'\?"),
        ("optimizer: {learning_rat: 1}", [], "did you mean 'learning_rate'"),
        ("sources: [{kind: atlas, strat: x}]", [], "did you mean 'start'"),
        (
            "sources: [{kind: atlass}]",
            [],
            r"'atlass' is no kind; did you mean 'atlas'\? Valid: folder, atlas\.$",
        ),
        (
            "sources: [{start: x}]",
            [],
            r"'sources.0' = .*it needs the key 'kind', which says what it is\.$",
        ),
        ("sources: [folder]", [], r"'sources.0' = 'folder': it must hold `key: value` lines\.$"),
        ("sources: {kind: folder}", [], r"it must be a list: \[a, b\], or lines"),
        ("sources: [{kind: atlas, start: a.org}]", [], "write a URL, as in https://host/path.$"),
        ("wanted: []", [], r"'wanted' = \[\]: give at least 1 item\.$"),
        ("wanted: [[1]]", [], r"'wanted.0' = \[1\]: [^(]*$"),
        ("zzz: 1", [], "unknown key 'zzz'; Valid: name"),
        ("optimizer: {learning_rate: -1}", [], "'optimizer.learning_rate' = -1: .*greater than 0"),
        ("", ["name"], "must look like a.b=value"),
        ("", ["name.x.y=1"], "unknown key|single value|valid string"),
        ("sources: [{kind: folder, path: a}]", ["sources.4.path=b"], "position from 0 to 0"),
        ("name: ${SKINDX_SURELY_UNSET}", [], "export SKINDX_SURELY_UNSET="),
        ("[1, 2]", [], "must hold `key: value` lines"),
        ("name: [", [], "not valid YAML"),
    ],
)
def test_bad_settings_are_one_sentence(
    tmp_path: Path, text: str, sets: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        load(tmp_path, text, *sets)
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.yaml does not exist"):
        Run.load(tmp_path / "nowhere.yaml")


def test_environment_variables_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "/data")
    assert load(tmp_path, "name: ${PLACE}/x").name == "/data/x"


def test_what_a_stranger_sends_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    assert Run.parse({"name": "${SECRET}"}).name == "hunter2"
    assert Run.parse({"name": "${SECRET}"}, expand=False).name == "${SECRET}"


def test_aliases_are_free_as_long_as_they_do_not_burst(tmp_path: Path) -> None:
    run = load(tmp_path, "wanted: &w [a, b]\nsources: []\nname: &n x\noptimizer: {}\n")
    assert run.wanted == ("a", "b")
    bomb = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    for text in ("\n".join(bomb), "wanted: &a [*a]", "wanted: &a {b: [*a]}"):
        with pytest.raises(UserError, match="once its aliases"):
            load(tmp_path, text)


@pytest.mark.parametrize("text", ["name: 2020-13-45", "name: " + "[" * 3000])
def test_what_yaml_cannot_make_a_value_of_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="is not valid YAML"):
        load(tmp_path, text)
