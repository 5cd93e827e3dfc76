import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import Field

import skindx
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx.core.settings_errors import pattern_words
from skindx.core.untrusted import read_plain_yaml
from skindx.training.config.ensemble import NAME
from skindx.training.config.run import MemberSettings


class Folder(Settings):
    kind: Literal["folder"] = "folder"
    path: str


class Atlas(Settings):
    kind: Literal["atlas"] = "atlas"
    start: str = Field(pattern=r"^https?://[^/]+")


class Optimizer(Settings):
    learning_rate: float = Field(0.1, gt=0)


class NoKeys(Settings):
    kind: Literal["path"] = "path"  # as a key of another kind is called


class Run(Settings):
    name: str = "run"
    policies: dict[str, Optimizer] = Field({})
    files: tuple[Annotated[Folder | NoKeys, Field(discriminator="kind")], ...] = ()
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


WORDS = """
NO on y Yes 1e3 0x10 0o7 010 007 12:30 1_000 2024-05-01 2020-13-45 1 1.10 true True
"""
"""What YAML 1.1 takes for truth values, numbers and dates."""


class Words(Settings):
    name: str = ""
    file: Path = Path()
    several: tuple[str, ...] = ()
    keys: Mapping[str, Literal["soon", "NO"]] = {}
    labels: Mapping[str, str] = {}
    either: str | int = 0
    switch: bool = False
    rate: float = 0
    parts: tuple[Folder, ...] = ()
    loose: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize("word", WORDS.split())
def test_what_yaml_reads_as_something_else_is_text_where_text_is_due(
    tmp_path: Path, word: str
) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(
        f"name: {word}\nfile: {word}\nseveral: [{word}, b]\nkeys: {{{word}: soon}}\n"
        f"labels: {{{word}: {word}}}\nparts: [{{path: {word}}}]\n"
    )
    read = Words.load(file)
    as_said = "True" if word == "true" else word  # a value; a key stays as it is written
    assert (read.name, read.file, read.several) == (as_said, Path(as_said), (as_said, "b"))
    assert (read.keys, read.labels) == ({word: "soon"}, {word: as_said})
    assert read.parts[0].path == as_said
    assert Words.load(None, [f"name={word}", f"keys.{word.replace('.', '')}=NO"]).name == as_said
    again = tmp_path / "again.yaml"
    read.save(again)
    assert Words.load(again) == read


def test_switches_and_numbers_are_read_as_before(tmp_path: Path) -> None:
    for text, switch in (
        ("yes", True),
        ("On", True),
        ("no", False),
        ("OFF", False),
        ("true", True),
    ):
        assert Words.load(None, [f"switch={text}"]).switch is switch
    for text, rate in (("1e-3", 0.001), ("1_000", 1000), (".5", 0.5), ("1.10", 1.1), ("+3", 3)):
        assert Words.load(None, [f"rate={text}"]).rate == rate
    assert Words.load(None, ["either=3"]).either == 3
    with pytest.raises(UserError, match="'rate' = 'yes': it must be a number"):
        Words.load(None, ["rate=yes"])
    with pytest.raises(UserError, match="'name' = 5"):
        Words.parse({"name": 5})  # what came as JSON is what it is
    assert type(Words.load(None, ["rate=1.10"]).rate) is float


def test_what_takes_any_type_gets_plain_numbers() -> None:
    loose = Words.load(None, ["loose.depth=2", "loose.rates=[0.10, {a: 1_0}]"]).loose
    assert loose == {"depth": 2, "rates": [0.1, {"a": 10}]}
    assert [type(loose["depth"]), type(loose["rates"][0]), type(loose["rates"][1]["a"])] == [
        int,
        float,
        int,
    ]


def test_a_strangers_yaml_has_words_for_keys_too(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("NO: on\n1: 12:30\n2024-05-01: [0x10, 2, 0.5, true, ~]\n")
    assert read_plain_yaml(file) == {
        "NO": "on",
        "1": "12:30",
        "2024-05-01": ["0x10", 2, 0.5, True, None],
    }
    assert read_yaml(file) == read_plain_yaml(file)


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
        ("optimiser: {}", [], r"there is no setting 'optimiser'; did you mean 'optimizer'\?"),
        ("optimizer: {learning_rat: 1}", [], "did you mean 'learning_rate'"),
        ("sources: [{kind: atlas, strat: x}]", [], "did you mean 'start'"),
        (
            "sources: [{kind: atlass}]",
            [],
            r"'atlass' is not a valid kind; did you mean 'atlas'\? Valid: folder, atlas\.$",
        ),
        (
            "sources: [{start: x}]",
            [],
            r"'sources.0' = .*it needs the key 'kind'; add this key\.$",
        ),
        (
            "sources: [folder]",
            [],
            r"'sources.0' = 'folder': it must have lines of the form `key: value`\.$",
        ),
        ("sources: {kind: folder}", [], r"it must be a list: \[a, b\], or lines"),
        ("sources: [{kind: atlas, start: a.org}]", [], "write a URL such as https://host/path.$"),
        ("wanted: []", [], r"'wanted' = \[\]: give at least 1 item\.$"),
        ("wanted: [[1]]", [], r"'wanted.0' = \[1\]: [^(]*$"),
        ("zzz: 1", [], "there is no setting 'zzz'; Valid: name"),
        ("name: a", ["learning_rate=1"], "^--set: .*did you mean 'optimizer.learning_rate'"),
        (
            "members: []\nfolds: 2",
            [],
            "contains settings of `skindx train`; give a recipe of `skindx",
        ),
        ("optimizer: {learning_rate: -1}", [], "'optimizer.learning_rate' = -1: .*greater than 0"),
        (
            "zzz: 1\noptimizer: {learning_rate: -1}",
            [],
            r"'zzz'; .* Also .*'optimizer.learning_rate' = ",
        ),
        (
            "a1: 1\nb1: 1",
            [],
            r"'a1'; Valid: .*\. Also .*: there is no setting 'b1'; remove it\.$",
        ),
        ("\n".join(f"q{n}: 1" for n in range(9)), [], r"'q5'; .*\. There are 3 more mistakes"),
        (
            "policies: {eu: {zzz: 1}}",
            [],
            r"there is no setting 'policies.eu.zzz'; Valid: learning_rate\.$",
        ),
        ("files: [{kind: path, zzz: 1}]", [], r"there is no setting 'files.0.zzz'; Valid: kind\.$"),
        (
            "sources: [{kind: folder, path: a}]",
            ["sources.0.zzz=1"],
            r"^--set: there is no setting 'sources.0.zzz'; Valid: kind, path\.$",
        ),
        ("", ["name"], "has the wrong form; write it as --set key=value"),
        (
            "name: a",
            ["optimizer.learning_rat=1"],
            "^--set: there is no setting 'optimizer.learning_rat'",
        ),
        ("optimizer: {learning_rat: 1}", ["name=a"], "^[^-].*: there is no setting"),
        (
            "name: a",
            ["optimizer.learning_rate=fast"],
            "^--set: 'optimizer.learning_rate' = 'fast': it must be a number",
        ),
        ("", ["name.x.y=1"], "there is no setting|single value|valid string"),
        ("sources: [{kind: folder, path: a}]", ["sources.4.path=b"], "position from 0 to 0"),
        ("name: ${SKINDX_SURELY_UNSET}", [], "export SKINDX_SURELY_UNSET="),
        ("[1, 2]", [], "on its own line as `key: value`"),
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
        with pytest.raises(UserError, match="after its YAML aliases"):
            load(tmp_path, text)


def test_what_yaml_cannot_make_a_value_of_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not valid YAML"):
        load(tmp_path, "name: " + "[" * 3000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": {"epochs": True}}, r"'recipe.epochs' = true: YAML reads yes"),
        ({"recipe": {"learning_rate": True}}, r"'recipe.learning_rate' = true: YAML reads yes"),
        ({"engine": {"zero": True}}, "'engine.zero' = true: YAML reads yes"),
        ({"engine": {"ranks": True}}, "'engine.ranks' = true: YAML reads yes"),
        ({"recipe": {"augment": {"scale": [0.5, True]}}}, "write a number"),
        ({"recipe": {"epochs": 1e21}}, "'recipe.epochs' = 1e[+]21: it is too large"),
        ({"recipe": {"epochs": 10**9}}, "'recipe.epochs' = 10+: .* less than or equal to 10+"),
        ({"recipe": {"learning_rate": 1e38}}, "'recipe.learning_rate' = 1e[+]38"),
        ({"loader": {"threads": -1}}, "'loader.threads' = -1: .* or equal to 1, or .* 'auto'[.]$"),
        ({"engine": {"timeout_s": 1e300}}, "'engine.timeout_s' = 1e[+]300"),
        ({"engine": {"lease_s": 1e300}}, "'engine.lease_s' = 1e[+]300"),
        ({"members": [{"name": "x" * 300, "model": "x"}]}, "'members.0.name' = 'xxx"),
        ({"name": "x" * 300}, "at most 200 characters"),
    ],
)
def test_numbers_and_names_are_within_what_a_training_can_do(
    change: dict[str, Any], said: str
) -> None:
    from skindx.training.config.run import TrainSettings

    with pytest.raises(UserError, match=said):
        TrainSettings.parse(change)


def test_every_number_of_every_configuration_has_bounds() -> None:
    """One that is written by us, into bundles and tables of results, needs none."""
    from skindx.data.recipe import BuildSettings
    from skindx.training.config.run import TrainSettings

    open_ended = {
        f"{kind.__name__}.{name}"
        for kind in _settings_in((TrainSettings, BuildSettings))
        for name, field in kind.model_fields.items()
        for marks in _numbers(field.annotation, field.metadata)
        if not marks
    }
    checked_below = {"EngineSettings.partitions", "Augment.scale"}
    assert open_ended <= checked_below


def _settings_in(roots: Iterable[Any]) -> set[type[Settings]]:
    seen: set[type[Settings]] = set()
    waiting = list(roots)
    while waiting:
        part = waiting.pop()
        if isinstance(part, type) and issubclass(part, Settings):
            if part not in seen:
                seen.add(part)
                waiting += [field.annotation for field in part.model_fields.values()]
        else:
            waiting += get_args(part)
    return seen


def _numbers(annotation: Any, marks: Sequence[Any]) -> Iterator[list[str]]:
    if annotation in (int, float):
        found = [part for mark in marks for part in getattr(mark, "metadata", [mark])]
        yield [name for name in ("le", "lt") for part in found if hasattr(part, name)]
    elif get_origin(annotation) is Annotated:
        first, *others = get_args(annotation)
        yield from _numbers(first, [*marks, *others])
    elif get_origin(annotation) is not Literal:
        inner = marks if get_origin(annotation) in (Union, UnionType) else ()
        for part in get_args(annotation):
            yield from _numbers(part, inner)


def _patterns() -> Iterator[str]:
    """Yield the literal patterns of all settings, from the source: imports would take seconds."""
    for file in Path(skindx.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Field"):
                continue
            for keyword in node.keywords:
                if keyword.arg == "pattern" and isinstance(keyword.value, ast.Constant):
                    yield keyword.value.value


def _pattern_of(settings: type[Settings], field: str) -> list[str]:
    metadata = settings.model_fields[field].metadata
    return [found for one in metadata if (found := getattr(one, "pattern", ""))]


def test_each_pattern_of_a_setting_is_said_in_words() -> None:
    patterns = {*_patterns(), NAME, *_pattern_of(MemberSettings, "model")}
    assert len(patterns) > 15
    for pattern in patterns:
        assert "match the pattern" not in pattern_words(pattern), pattern
    assert pattern_words("^[x]$") == "it must match the pattern '^[x]$'"


def test_a_file_that_a_program_wrote_is_copied_again() -> None:
    raw = {"threshold": [None], "name": {"a": True}}
    with pytest.raises(UserError) as refused:
        _Written.parse(raw, "/x/bundle.json", expand=False)
    said = str(refused.value)
    assert "'threshold' = [null]: it must be a valid number" in said
    assert "'name' = {\"a\": true}: it must be a valid string" in said
    assert said.endswith("so copy it again from its source instead of correcting it.")
    with pytest.raises(UserError) as refused:
        _Written.parse(raw, "/x/train.yaml", yaml=True)
    assert "A program wrote" not in str(refused.value)


class _Written(Settings):
    threshold: float = 0.5
    name: str = ""
