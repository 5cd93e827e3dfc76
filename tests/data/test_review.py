import pytest

from skindx.data.review import (
    DECISIONS,
    Decision,
    Flag,
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
    flags = [Flag("aa", "face", 0.5), Flag("bb", "text", 0.5), Flag("cc", "label", 0.5)]
    write_flags(tmp_path, flags, ["face", "text", "label"])
    assert set(undecided(tmp_path)) == {"aa", "bb"}
    (tmp_path / DECISIONS).write_text("sha256,verdict,by\naa,withhold,me\naa,keep,you\n")
    assert read_decisions(tmp_path) == {"aa": Decision("aa", "keep", "you")}
    assert undecided(tmp_path) == {"bb": [flags[1]]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sha256,verdict\naa,maybe\n", r"line 2: the verdict 'maybe' is none of keep, withhold"),
        ("picture,verdict\naa,keep\n", "needs the columns sha256 and verdict"),
    ],
)
def test_a_row_that_says_nothing_is_told(tmp_path, text, sentence):
    (tmp_path / DECISIONS).write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_decisions(tmp_path)
