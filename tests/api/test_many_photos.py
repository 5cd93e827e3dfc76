"""`skindx diagnose` with a folder or a table: one row a file, resumed after a kill, and a page."""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Skindx
from skin_photo import skin_photo
from tiny_bundle import pack_tiny

from skindx.api import predictions
from skindx.api.answer_file import write_table
from skindx.core.atomic_files import only_writer

ODD = ("<script>alert(1)<script>.jpg", "=1+1.jpg", "blurred.jpg", os.fsdecode(b"\xff.jpg"))
ROWS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "photos"
    folder.mkdir()
    for seed in range(ROWS - len(ODD)):
        (folder / f"p{seed}.jpg").write_bytes(skin_photo(seed=seed))
    contents = (skin_photo(seed=99), b"no photo", skin_photo(blur=9), skin_photo(seed=98))
    for name, content in zip(ODD, contents, strict=True):
        (folder / name).write_bytes(content)
    return folder


Answer = Callable[..., Path]


@pytest.fixture
def answer(skindx: Skindx, tiny_bundle: Path, folder: Path, tmp_path: Path) -> Answer:
    def run(name: str, *words: object, source: Path = folder) -> Path:
        code, _, problem = skindx("diagnose", tiny_bundle, source, "--out", tmp_path / name, *words)
        assert code == 0, problem
        return tmp_path / name

    return run


def rows_of(table: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.read_text(encoding="utf-8").splitlines()]


def test_every_file_has_a_row_in_each_format_and_a_place_on_a_page_that_asks_nobody(
    answer: Answer, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    out = answer("a.jsonl", "--summary", page)
    assert [file.stat().st_mode & 0o077 for file in (out, page)] == [0, 0]
    assert sorted(tmp_path.iterdir()) == [out, page]
    rows = rows_of(out)
    assert [row["file"] for row in rows] == [
        *ODD[:3], *(f"p{n}.jpg" for n in range(4)), "\N{REPLACEMENT CHARACTER}.jpg"
    ]  # fmt: skip
    assert [row["refused"] for row in rows][:4] == [None, "unreadable", "blur", None]
    schema = pa.Table.from_pylist(rows).schema
    write_table(tmp_path / "a.parquet", schema, rows)
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == rows
    write_table(tmp_path / "a.csv", schema, rows)
    with (tmp_path / "a.csv").open(encoding="utf-8") as file:
        texts = list(csv.DictReader(file))
    assert [list(texts[0]), len(texts), len(rows)] == [list(rows[0]), ROWS, ROWS]
    assert texts[1]["file"] == "'=1+1.jpg"  # no spreadsheet computes it
    for text, row in zip(texts, rows, strict=True):
        assert text["probability"] == ("" if row["refused"] else str(row["probability"]))
        assert text["set"] == ";".join(row["set"] or ())
    html = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;script&gt;.jpg" in html
    assert "<script>alert" not in html
    assert "http" not in html.replace("http-equiv", "")
    order = ["urgent", "soon", "unknown", "routine", "refused"]
    kinds = [part.split('"')[1].split()[0] for part in html.split("data-kinds=")[1:]]
    assert len(kinds) == ROWS
    assert kinds == sorted(kinds, key=order.index)
    assert html.count("data:image/jpeg") == ROWS - 1  # all but the one that is no image
    for sentence in ("not a medical device", "cannot rule out any disease", "and no others"):
        assert sentence in html


def test_facts_of_a_table_reach_the_answers(
    answer: Answer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    real = predictions.iter_predictions

    def noting(*arguments: Any, facts: Any, **options: Any) -> Any:
        given.extend(facts)
        return real(*arguments, facts=facts, **options)

    monkeypatch.setattr(predictions, "iter_predictions", noting)
    table = folder / "table.csv"
    table.write_text("file,age,sex,site\np1.jpg,45,m,arm\ngone.jpg,,,\n", encoding="utf-8")
    rows = rows_of(answer("c.jsonl", source=table))
    table.unlink()
    assert given == [{"age": 45, "sex": "male", "site": "arm"}, {}]
    assert [(row["file"], row["refused"]) for row in rows] == [
        ("p1.jpg", None), ("gone.jpg", "file")
    ]  # fmt: skip


@pytest.mark.long
def test_a_killed_run_goes_on_and_answers_no_file_twice(
    tiny_bundle: Path,
    answer: Answer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real process, killed by SIGKILL after its first rows; the second run does the rest."""
    photos = tmp_path / "photos"
    photos.mkdir()
    names = {f"{n:03}.jpg" for n in range(70)}
    (photos / "000.jpg").write_bytes(skin_photo())
    for name in names - {"000.jpg"}:
        os.link(photos / "000.jpg", photos / name)
    part = tmp_path / "answers.jsonl.part"
    words = ("diagnose", tiny_bundle, photos, "--out", tmp_path / "answers.jsonl")
    code = "import sys; from skindx.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not part.exists() or part.read_bytes().count(b"\n") < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    first = {json.loads(line)["file"] for line in part.read_bytes().splitlines(keepends=True)[1:]
             if line.endswith(b"\n")}  # fmt: skip
    assert 0 < len(first) < len(names)
    with part.open("ab") as file:
        file.write(b'{"file": "cut sh')  # what a kill in the middle of a write leaves
    asked: list[str] = []
    real = predictions.iter_predictions

    def noting(predictor: Any, photos: Any, **options: Any) -> Any:
        asked.extend(path.name for path in photos)
        return real(predictor, photos, **options)

    monkeypatch.setattr(predictions, "iter_predictions", noting)
    rows = rows_of(answer("answers.jsonl", source=photos))
    assert sorted(asked) == sorted(names - first)
    assert [row["file"] for row in rows] == sorted(names)
    assert len({json.dumps(row | {"file": ""}) for row in rows}) == 1
    assert not part.exists()


def test_a_part_file_of_another_bundle_is_refused_and_a_changed_photo_answered_again(
    skindx: Skindx, tiny_bundle: Path, answer: Answer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(3):
        (photos / f"{seed}.jpg").write_bytes(skin_photo(seed=seed))
    out, real = tmp_path / "d.jsonl", predictions.iter_predictions

    def run(bundle: Path, *words: object) -> str:
        code, _, problem = skindx("diagnose", bundle, photos, "--out", out, *words)
        assert code == 2
        return str(problem)

    def stopping(*arguments: Any, **options: Any) -> Any:
        yield from real(*arguments, batch=1, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(predictions, "iter_predictions", stopping)
    skindx("diagnose", tiny_bundle, photos, "--out", out)
    with (tmp_path / "d.jsonl.part").open("ab") as file:
        file.write(b'{"file": "cut sh')  # what a kill in the middle of a write leaves
    other = pack_tiny(tmp_path / "other", temperature=2.0).path
    assert "was begun with another bundle; give the same one to go on" in run(other)
    with only_writer(tmp_path / "d.jsonl.part"):
        assert "another diagnosis is running in" in run(tiny_bundle)
    asked: list[str] = []
    (photos / "1.jpg").write_bytes(skin_photo(blur=9))

    def noting(predictor: Any, photos: Any, **options: Any) -> Any:
        asked.extend(path.name for path in photos)
        return real(predictor, photos, **options)

    monkeypatch.setattr(predictions, "iter_predictions", noting)
    rows = rows_of(answer("d.jsonl", source=photos))
    assert asked == ["1.jpg"]
    assert [row["refused"] for row in rows] == [None, "blur", None]
    assert (
        f"{out} already exists and would be overwritten; delete it, or give another --out."
        in run(tiny_bundle)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "and --out is missing; add --out answers.csv"),
        (("--out", "a.xlsx"), "error: --out a.xlsx must end in .csv"),
        (("--out", "a.csv", "--age", "3"), "--age describes one case"),
        (("--out", "a.csv", "--summary", "a.txt"), "--summary a.txt must be"),
        (
            ("more.jpg", "--out", "a.csv"),
            "--out works with one folder or one table of photos, not with 2 paths",
        ),
    ],
)
def test_wrong_words_are_refused_before_a_bundle_is_loaded(
    skindx: Skindx, folder: Path, words: tuple[str, ...], message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, _, problem = skindx("diagnose", "./no-bundle", folder, *words)
    assert code == 2
    assert message in " ".join(problem.split())
    assert list(tmp_path.iterdir()) == []
