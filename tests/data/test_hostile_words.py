"""Labels, names and addresses of strangers stay words: in a terminal, on a page, in a table."""

import csv
import io
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from command_line import Skindx
from gallery_fakes import HOSTILE, gallery_dataset
from paint_images import paint, save
from rich.console import Console
from small_dataset import free_dataset

from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.publish.assemble import publish
from skindx.data.publish.dataset_card import plain
from skindx.data.publish.publish_settings import PublishSettings
from skindx.data.summary import ClassCount, print_counts, print_summary
from skindx.data.tables.cells import no_formula
from skindx.review.dataset_review import DatasetReview

WORDS = "[/bold][red]\x1b]0;owned\x07\x1b[2J\u202egnp\u2066\r\x08[link=http://x]"
SHOWN = "[/bold][red]\ufffd]0;owned\ufffd\ufffd[2J\ufffdgnp\ufffd\ufffd\ufffd[link=http://x]"


def screen() -> Console:
    # A terminal as far as rich knows: the one escape code that may come is its own.
    return Console(file=io.StringIO(), width=400, force_terminal=True, color_system=None)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert not set(text) & set("\x1b\x07\x08\r\u202e\u2066")
    return text


def test_a_build_of_hostile_names_prints_them(tmp_path: Path) -> None:
    for label in ("acne", f"wart {WORDS}".replace("/", "|")):
        for number in range(4):
            save(tmp_path / "in" / label / f"{number}.jpg", paint(len(label) * 10 + number))
    save(tmp_path / "in" / "acne" / WORDS.replace("/", "|"), paint(70, 24, 24))
    summary = build(load_build_settings(tmp_path / "in", ["workers=1"]), tmp_path / "out")
    console = screen()
    print_summary(summary, console)
    count = ClassCount("acne", 5, {WORDS: 3}, {WORDS: 2})
    print_counts([count], console)
    assert SHOWN in said(console)


def test_a_mistake_prints_them(skindx: Skindx, tmp_path: Path) -> None:
    (tmp_path / "acne").mkdir()
    (tmp_path / "acne" / WORDS.replace("/", "|")).write_bytes(b"x")
    for number in range(3):
        save(tmp_path / WORDS.replace("/", "|") / f"{number}.jpg", paint(number))
        (tmp_path / "acne" / f"{number}.jpg").write_bytes(b"x")
    code, _, err = skindx("build", tmp_path, "--out", WORDS)
    assert code == 2
    assert err.startswith("error: ")
    assert not set(err) & set("\x1b\x07\x08\r\u202e")


def test_the_review_page_is_told_printable_words(tmp_path: Path) -> None:
    review = DatasetReview(gallery_dataset(tmp_path / "data"))
    whole = review.whole()
    details = [review.detail(at) for at in range(len(review.items))]
    shown = [name for _, name in whole["labels"]] + whole["sources"] + [whole["name"]]
    shown += [text for detail in details for pair in detail["facts"] for text in pair]
    shown += [text for detail in details for pair in detail["why"] for text in pair]
    assert any("<script>" in text for text in shown)  # the page shows it as text
    assert not set("".join(shown)) & set("\x00\x1b\x07\u202e\u2066")


@pytest.mark.parametrize("words", [*HOSTILE, WORDS, "[x](javascript:alert(1))", "<https://x>"])
def test_a_card_shows_words_alone(words: str) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    renderer = markdown_it.MarkdownIt("commonmark", {"html": True})
    page = renderer.render(f"- {plain(words)}\n")
    tags = {element.tag for element in ET.fromstring(f"<x>{page}</x>").iter()}
    assert tags <= {"x", "ul", "li"}
    assert all(char.isprintable() or char == "\n" for char in page)


@pytest.mark.parametrize("words", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"])
def test_a_spreadsheet_computes_nothing_of_them(words: str) -> None:
    assert no_formula(words) == f"'{words}"
    assert no_formula("A. Painter = me") == "A. Painter = me"
    assert no_formula(-1) == -1


@pytest.mark.usefixtures("quick")
def test_the_table_for_people_holds_no_formula(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    small.add(creator='=HYPERLINK("http://x")')
    settings = PublishSettings(contact="a@b", unaudited=True, format="imagefolder")
    publish(small.write(), tmp_path / "out", settings)
    with (tmp_path / "out" / "metadata.csv").open(newline="") as file:
        creators = {row["creator"] for row in csv.DictReader(file)}
    assert creators == {"A. Painter", '\'=HYPERLINK("http://x")'}
