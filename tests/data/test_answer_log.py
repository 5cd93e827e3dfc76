"""decisions.csv: rows of people and of pages, undoing, crashes, several writers, older files."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.answer_log import (
    COLUMNS,
    DECISIONS,
    AnsweredMeanwhileError,
    AnswerLog,
    ReviewAnswer,
    answer_now,
    held_answers,
    read_answers_to,
)
from skindx.data.decisions import answered_skin, read_decisions, relabelled
from skindx.data.removal.purge import purge_other_tables

A, B, C = (letter * 64 for letter in "abc")


def test_a_file_by_hand_is_read_and_gets_the_columns_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / DECISIONS
    file.write_text(f"\ufeffsha256,verdict,why\n{A.upper()}, keep ,mine\n{A},remove,\n")
    assert {sha: answer.verdict for sha, answer in read_decisions(tmp_path).items()} == {
        A: "remove"
    }
    log = AnswerLog(tmp_path)
    assert log.revision("image", (A,)) == 2
    log.add((A,), answer_now("relabel", "me", label="Melanoma"), 0)
    head, first, *_, last = file.read_text().splitlines()
    assert head == ",".join((*COLUMNS, "why"))
    assert first.endswith(",mine")
    assert f"{A},,label,relabel,Melanoma,me," in last
    assert relabelled(tmp_path) == {A: "Melanoma"}
    assert read_decisions(tmp_path)[A].verdict == "remove"
    before = file.read_bytes()
    log.add((B,), answer_now("keep", "me"))
    assert file.read_bytes().startswith(before), "what is there is never written again"


def test_older_files_count_until_a_newer_row_and_undoing_gives_them_back(tmp_path: Path) -> None:
    (tmp_path / "skin_answers.csv").write_text(f"sha256,verdict,by\n{A},not skin,x\n")
    (tmp_path / "copy_answers.csv").write_text(f"sha256_a,sha256_b,verdict\n{B},{A},same\n")
    log = AnswerLog(tmp_path)
    assert answered_skin(tmp_path) == {A: False}
    assert log.answers("copy") == {(A, B): ReviewAnswer("same")}
    log.add((A,), answer_now("skin", "me"), 1)
    assert answered_skin(tmp_path) == {A: True}
    log.restore("skin", (A,), 1, "me", 2)
    assert read_answers_to(tmp_path, "skin") == {(A,): ReviewAnswer("not skin", "x")}
    log.restore("skin", (A,), 0, "me")
    assert answered_skin(tmp_path) == {}
    assert len((tmp_path / DECISIONS).read_text().splitlines()) == 4
    assert (tmp_path / "skin_answers.csv").read_text().count("\n") == 2


@given(st.lists(st.sampled_from(["keep", "withhold", "remove"]), min_size=1, max_size=5))
def test_undoing_all_leaves_no_answer_and_a_new_reader_sees_the_same(
    tmp_path_factory: pytest.TempPathFactory, verdicts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = AnswerLog(folder)
    for number, verdict in enumerate(verdicts):
        log.add((A,), answer_now(verdict, "me", note='a "note",\nof two lines'), number)
        assert AnswerLog(folder).latest("image", (A,)) == log.latest("image", (A,))
    for before in reversed(range(len(verdicts))):
        log.restore("image", (A,), before, "me")
        now = AnswerLog(folder).latest("image", (A,))
        assert (now.verdict if now else None) == (verdicts[before - 1] if before else None)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            f"{A},perhaps",
            "line 2: the verdict 'perhaps' is unknown; write one of keep, withhold, remove",
        ),
        ("abc123,keep", "line 2: 'abc123' is not a SHA-256"),
        (f"{A},same", "line 2: '' is not a SHA-256"),
        (f"{A},relabel", "line 2: the verdict relabel needs the correct class"),
        (f"{A},undone", "line 2: the verdict 'undone' is unknown"),
    ],
)
def test_what_cannot_be_understood_is_named(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / DECISIONS).write_text(f"sha256,verdict\n{rows}\n{B},keep\n")
    with pytest.raises(UserError, match=message):
        AnswerLog(tmp_path)
    (tmp_path / DECISIONS).write_text("sha,verdict\n")
    with pytest.raises(UserError, match="the names sha256 and verdict"):
        AnswerLog(tmp_path)


def test_a_torn_last_line_is_none_and_goes_with_the_next_answer(tmp_path: Path) -> None:
    file, log = tmp_path / DECISIONS, AnswerLog(tmp_path)
    log.add((A,), answer_now("keep", "me"))
    whole = file.read_bytes()
    for cut in (10, 70, 76):
        file.write_bytes(whole + f"{B},,image,withhold,,me,".encode()[:cut])
        assert read_decisions(tmp_path).keys() == {A}
    AnswerLog(tmp_path).add((C,), answer_now("remove", "me"))
    assert read_decisions(tmp_path).keys() == {A, C}
    file.write_bytes(file.read_bytes() + f"{B},,,keep,".encode())  # whole, by hand
    AnswerLog(tmp_path).add((A,), answer_now("remove", "me"))
    assert {sha: one.verdict for sha, one in read_decisions(tmp_path).items()} == {
        A: "remove", B: "keep", C: "remove",
    }  # fmt: skip
    file.write_bytes(b"")  # killed before the first row
    assert read_decisions(tmp_path) == {}
    AnswerLog(tmp_path).add((A,), answer_now("keep", "me"))
    assert read_decisions(tmp_path).keys() == {A}


def test_who_answers_what_another_answered_since_is_told(tmp_path: Path) -> None:
    mine, theirs = AnswerLog(tmp_path), AnswerLog(tmp_path)
    theirs.add((A,), answer_now("withhold", "Dr. B"), 0)
    with pytest.raises(AnsweredMeanwhileError, match=r"Dr\. B has answered 'withhold' meanwhile"):
        mine.add((A,), answer_now("keep", "Dr. A"), 0)
    assert read_decisions(tmp_path)[A].by == "Dr. B"
    mine.take_changes()
    mine.add((A,), answer_now("keep", "Dr. A"), 1)
    assert theirs.latest("image", (A,)) != mine.latest("image", (A,))
    theirs.refresh()
    assert theirs.take_changes() == [(A,), (A,)]
    with pytest.raises(AnsweredMeanwhileError, match=r"Dr\. A has answered 'keep'"):
        theirs.restore("image", (A,), 0, "Dr. B", 1)


WRITER = """
import sys; from pathlib import Path
from skindx.data.answer_log import AnswerLog, answer_now
log = AnswerLog(Path(sys.argv[1]))
for number in range(60):
    log.add((f"{number:064x}",), answer_now("keep", sys.argv[2]))
"""


def test_no_row_of_three_processes_is_lost(tmp_path: Path) -> None:
    (tmp_path / DECISIONS).write_text(f"sha256,verdict\n{A},remove\n")  # to be written anew once
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name]) for name in ("x", "y", "z")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    log = AnswerLog(tmp_path)
    assert {log.revision("image", (f"{number:064x}",)) for number in range(60)} == {3}
    assert log.latest("image", (A,)) == ReviewAnswer("remove")


def test_a_link_in_a_strangers_dataset_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("mine\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DECISIONS).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=r"has missing columns"):
        AnswerLog(tmp_path / "data")
    (tmp_path / "outside").write_text("")
    with pytest.raises(UserError, match="is no plain file"):
        AnswerLog(tmp_path / "data").add((A,), answer_now("keep", "me"))
    assert (tmp_path / "outside").read_text() == ""


def test_a_removal_takes_answers_about_the_image_and_its_pairs(tmp_path: Path) -> None:
    log, staging = AnswerLog(tmp_path), tmp_path / "staging"
    staging.mkdir()
    log.add((A, B), answer_now("same", "me"))
    log.add((B,), answer_now("keep", "me"))
    log.add((C,), answer_now("keep", "me"))
    with held_answers(tmp_path):
        purge_other_tables(tmp_path, staging, {B}, ())
    (staging / DECISIONS).replace(tmp_path / DECISIONS)
    log.refresh()
    assert (log.answers("copy"), log.answers("image").keys()) == ({}, {(C,)})


def test_a_log_that_excel_saved_is_read_and_written_anew(tmp_path: Path) -> None:
    text = f"sha256;verdict;why\r\n{A};keep;Größe\r\n{B};remove\r\n"
    for encoding in ("cp1252", "utf-16", "utf-8-sig"):
        (tmp_path / DECISIONS).write_bytes(text.encode(encoding))
        log = AnswerLog(tmp_path)
        log.add((C,), answer_now("keep", "me"))
        assert (tmp_path / DECISIONS).read_text(encoding="utf-8").count("Größe") == 1
        assert [one.verdict for one in read_decisions(tmp_path).values()] == [
            *("keep", "remove", "keep"),
        ]


def test_a_removal_takes_rows_of_tables_that_excel_saved(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(f"sha256;note\r\n{A};x\r\n{B};y\r\n".encode("utf-16"))
    (tmp_path / "staging").mkdir()
    purge_other_tables(tmp_path, tmp_path / "staging", {B}, ())
    assert (tmp_path / "staging" / "mine.csv").read_text("utf-16") == f"sha256;note\n{A};x\n"
