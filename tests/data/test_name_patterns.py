"""Patterns of users: the answers of `re`, in a time that no pattern can stretch."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from skindx.core.errors import UserError
from skindx.core.settings_base import with_group
from skindx.data import name_patterns
from skindx.data.boxes.box_file import BoxRules
from skindx.data.boxes.box_formats import read_masks
from skindx.data.name_patterns import first_groups
from skindx.data.sources.folder import FolderSource
from skindx.data.splits.groups import GroupKeys, GroupSettings
from skindx.workers.worker_process import SandboxLimits

LONG = "a" * 40 + "!"
LINEAR = (
    "^(a+)+$", r"^(.+?)(?:\.[^.]*)?$", r"(\w+)_\d+", r"(IMG|img)[-_ ]?(\d{2,4})",
    r"^(\S+?)\s", r"(ä|ö)+", "(x)?y", r"([\w.-]+)@", r"([^\d]+)", r"(\D{2})", r"\A(a{2,})\Z",
    "(a{,2})b", "([[:alpha:]]+)", "(a|ab)(c|bcd)", r"(?P<patient>p\d)", r"(\.)jpg", "(.)$",
)  # fmt: skip
CHILD = (r"(?<=_)(\w+)", r"(?i)(straße|İ)", r"(a*)*b", r"(\w)\1", r"\b(\w+)\b", r"(?m)^(b)",
         r"(?:|a)+(b)", r"(a)(?!b)", r"([\W\d]+)", r"^([^_\W]+)-", "(?>a+)(b)")  # fmt: skip
NAMES = (
    "", "a", "aab", "abcd", "IMG_0012.jpg", "p1_22.JPG", "Köln-12.png", "ä ö.jpg", "x\ty", "y",
    "٣_4", "İstanbul", "a\nb", "b\n", "aa\n", "\udce4_1.jpg", "㋿_\U0001f9ff", "a.b@c", "1\x1c2",
    "k\u212a", "STRASSE", "straße", "éé", "e\u0301", "a:l",
)  # fmt: skip


def plainly(pattern: str, names: tuple[str, ...]) -> dict[str, str | None]:
    found = {name: re.search(pattern, name) for name in names}
    return {name: (match.group(1) or "") if match else None for name, match in found.items()}


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@pytest.mark.parametrize("pattern", [*LINEAR, *CHILD])
def test_the_answers_are_those_of_re(pattern: str) -> None:
    assert (name_patterns._linear(pattern) is not None) == (pattern in LINEAR)
    names = NAMES if pattern in LINEAR else NAMES[:18]
    assert first_groups(pattern, names) == plainly(pattern, names)


PIECES = st.sampled_from(
    ["a", "b", "_", r"\d", r"\w", r"\s", r"\W", ".", "[ab]", "[^a]", r"[\d_]", "^", "$", "ä", r"\."]
)
PATTERNS = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{,2}", "*?", "+?"])).map(
            lambda both: f"(?:{both[0]}){both[1]}"
        ),
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda all_: f"({'|'.join(all_)})"),
    ),
    max_leaves=6,
)


@given(PATTERNS, st.lists(st.text("ab_1ä .\u0663", max_size=6), max_size=8))
def test_any_pattern_that_re2_takes_is_answered_as_re_does(inner: str, names: list[str]) -> None:
    pattern = f"({inner})"
    if search := name_patterns._linear(pattern):
        found = {name: search(name) for name in names}
        said = {name: (match.group(1) or "") if match else None for name, match in found.items()}
        assert said == plainly(pattern, tuple(names))


def test_letters_digits_and_spaces_are_those_of_python() -> None:
    every = [chr(code) for code in range(1, 0x3000) if code != 10]
    for pattern in (r"^(\w)$", r"^(\d)$", r"^(\s)$", r"^(\W)$"):
        search = name_patterns._linear(pattern)
        assert search
        known = filter(name_patterns._is_known, every)
        assert [c for c in known if bool(search(c)) != bool(re.search(pattern, c))] == []


def test_no_pattern_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three settings that take one: a folder's groups, a table of groups, names of masks."""
    began = time.monotonic()
    assert first_groups("^(a+)+$", [LONG, "a"]) == {LONG: None, "a": "a"}
    for label in ("one", "two"):
        for number in range(3):
            file = tmp_path / "images" / label / f"{LONG}{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64, 64), (number, 9, len(label))).save(file)
    folder = FolderSource(kind="folder", path=tmp_path / "images", group_pattern="^((?:a+)+)$")
    assert {row.group for row in folder.gather(tmp_path / "dataset")} == {""}
    read_masks(tmp_path / "images", BoxRules(pattern="^(a+)+$"))
    assert time.monotonic() - began < 30
    # What RE2 does not have is ended, with the name; and where RE2 is not installed.
    monkeypatch.setattr(name_patterns, "LIMITS", SandboxLimits(timeout_s=1, memory_mb=1024))
    sentence = r"the pattern '\^\(a\+\)\+\(\?!b\)\$' takes too long on the name 'aaaa"
    with pytest.raises(UserError, match=sentence):
        first_groups("^(a+)+(?!b)$", ["a", LONG, "b"])
    table = tmp_path / "groups.csv"
    table.write_text("key,group\na,1\n")
    keys = GroupKeys(
        GroupSettings.parse(
            {
                "tables": [
                    {"path": str(table), "key_column": "key", "group_column": "group",
                     "key_pattern": "^(?=a)(a+)+$"}
                ]
            }
        )
    )  # fmt: skip
    row = folder.stored(tmp_path, f"{LONG}.png", "one", b"", status="unreadable")
    with pytest.raises(UserError, match="takes too long"):
        keys.group_keys(row)
    assert keys._look_up(0, folder.stored(tmp_path, "a", "one", b"", status="unreadable")) == ["1"]


def test_many_slow_names_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "_LONGEST_S", 0.0)
    slow = "a" * 21 + "!"
    with pytest.raises(UserError, match="takes too long"):
        first_groups("^(a+)+(?!b)$", [f"{slow}{number}" for number in range(40)])


@pytest.mark.parametrize("pattern", ["(a{99999999999999999999})", "(" * 2000 + "a" + ")" * 2000])
def test_a_pattern_that_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a valid regular expression"):
        with_group(pattern)
