import pytest

from skindx.data.manifest import Record, write_manifest
from skindx.data.review import (
    DECISIONS,
    Decision,
    Flag,
    looked_at,
    read_decisions,
    read_flags,
    undecided,
    write_flags,
)
from skindx.errors import UserError


def test_a_second_look_replaces_its_own_reasons_only(tmp_path):
    face, text = Flag("aa", "face", 0.5, "one face"), Flag("bb", "text", 0.75)
    write_flags(tmp_path, [face, text], ["face", "text"])
    assert read_flags(tmp_path) == [face, text]
    write_flags(tmp_path, [Flag("cc", "face", 1.0)], ["face"])
    assert read_flags(tmp_path) == [text, Flag("cc", "face", 1.0)]


def test_no_table_is_no_flag(tmp_path):
    assert read_flags(tmp_path) == []
    assert read_decisions(tmp_path) == {}
    assert undecided(tmp_path) == {}


def test_undecided_are_private_flags_without_a_decision(tmp_path):
    a, b, c = ("a" * 64, "b" * 64, "c" * 64)
    flags = [Flag(a, "face", 0.5), Flag(b, "text", 0.5), Flag(c, "label", 0.5)]
    write_flags(tmp_path, flags, ["face", "text", "label"])
    assert set(undecided(tmp_path)) == {a, b}
    (tmp_path / DECISIONS).write_text(f"sha256,verdict,by\n{a},withhold,me\n{a.upper()},keep,you\n")
    assert read_decisions(tmp_path) == {a: Decision(a, "keep", "you")}
    assert undecided(tmp_path) == {b: [flags[1]]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sha256,verdict\naa,maybe\n", r"line 2: the verdict 'maybe' is none of keep, withhold"),
        ("sha256,verdict\n018827ee6944,keep\n", "line 2: '018827ee6944' is no whole SHA-256"),
        ("picture,verdict\naa,keep\n", "needs the columns sha256 and verdict"),
    ],
)
def test_a_row_that_says_nothing_is_told(tmp_path, text, sentence):
    (tmp_path / DECISIONS).write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_decisions(tmp_path)


def test_what_was_looked_at_is_known_picture_by_picture(tmp_path):
    def manifest(*names):
        fields = {"perceptual_hash": "", "width": 1, "height": 1, "label": "a", "group": "g"}
        write_manifest(tmp_path, [Record(n, n, **fields, split="train") for n in names])

    manifest("aa", "bb")
    write_flags(tmp_path, [Flag("aa", "face", 0.5)], ["face"])
    assert looked_at(tmp_path, ["face"]) == {"aa", "bb"}
    assert looked_at(tmp_path) == set()
    manifest("bb", "cc")
    write_flags(tmp_path, [], ["text", "intimate"])
    assert looked_at(tmp_path) == {"bb"}
    write_flags(tmp_path, [], ["face"])
    assert looked_at(tmp_path) == {"bb", "cc"}
