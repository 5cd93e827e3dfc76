"""The folder of a scan: tables, COCO, crops, page and PDF, whole or not at all."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import signal
from dataclasses import replace
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow.parquet as pq
import pytest
from forks import forked
from found_lesions import lesion
from hypothesis import given
from hypothesis import strategies as st
from painted_bodies import BANDS, CLASSES, PHOTOS, WHEN, lesions_of, paint, scan_of, size_recall
from pdf_words import words_of
from PIL import Image
from whole_photo import ArrayPhoto

from skindx.core.errors import UserError
from skindx.data.boxes.coco import read_coco
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.report import pdf_sheet
from skindx.models.bundle.bundle import open_bundle
from skindx.scan.outputs.scan_files import move, write_scan
from skindx.scan.outputs.scan_pages import pdf_bytes, problems, render_scan
from skindx.scan.outputs.scan_result import (
    Missed,
    ScanResult,
    missed_by_size,
    missed_sentence,
    not_a_diagnosis,
    read_summary,
    summary_of,
)
from skindx.scan.pixel_store import LevelledPhoto
from skindx.scan.scan_run import result_of
from skindx.texts import catalogue
from skindx.ui.scans.scan_answer import answer_of

HOSTILE = '=cmd|"<script>alert(1)</script>&\u202e.jpg'
SIZE = (600, 800)


@pytest.fixture(scope="module")
def result() -> ScanResult:
    scan = scan_of(lesions_of(12, size_wh=SIZE), lesions_of(6, 3, SIZE), size_wh=SIZE)
    hostile = replace(scan.photos[0], name=HOSTILE, failed_tiles=2, mm_per_pixel=None)
    return replace(scan, photos=(hostile, scan.photos[1]))


@pytest.fixture(scope="module")
def reads(result: ScanResult) -> list[ArrayPhoto]:
    return [ArrayPhoto(paint(list(photo.lesions), SIZE, seed=1)) for photo in result.photos]


@pytest.fixture(scope="module")
def folder(
    result: ScanResult, reads: list[ArrayPhoto], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("scans") / "back"
    write_scan(path, result, reads)
    return path


def test_everything_is_there(folder: Path, result: ScanResult) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "lesions.parquet", "lesions.csv", "lesions.coco.json", "scan.json", "scan.html",
        "scan.pdf", "crops", "overviews",
    }  # fmt: skip
    assert len(list((folder / "crops").iterdir())) == len(result.ranked)
    summary = read_summary(folder)
    assert [photo.name for photo in summary.photos] == [photo.name for photo in result.photos]
    assert summary.recall is not None
    assert summary.recall[-1].most_px is None


def test_the_table_has_what_was_found(folder: Path, result: ScanResult) -> None:
    table = pq.read_table(folder / "lesions.parquet")
    assert table.schema.metadata[b"classes"] == b"nevus,melanoma,keratosis"
    rows = table.to_pylist()
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    for row, found in zip(rows, result.ranked, strict=True):
        assert (row["x1"], row["y2"]) == (found.lesion.box.x1, found.lesion.box.y2)
        assert row["urgent_risk"] == found.lesion.urgent_risk
        assert row["photo"] == result.photos[found.photo].name
        assert row["diameter_mm"] == found.diameter_mm
        assert np.array(row["embedding"], np.float32) == pytest.approx(found.lesion.embedding_D)
        assert (folder / row["crop"]).is_file()


def test_a_lesion_at_the_edge_of_a_photo_was_seen_in_part(
    result: ScanResult, reads: list[ArrayPhoto], tmp_path: Path
) -> None:
    first, *others = result.photos
    cut, *rest = first.lesions
    width, box = first.width, cut.box
    across = replace(box, x1=width - (box.x2 - box.x1) - 0.5, x2=width - 0.5)
    photo = replace(first, lesions=(replace(cut, box=across), *rest))
    write_scan(tmp_path / "cut", replace(result, photos=(photo, *others)), reads)
    table = pq.read_table(tmp_path / "cut" / "lesions.parquet").to_pylist()
    marked = []
    for row in table:
        place = result.photos[row["photo_number"] - 1]
        size = max(row["x2"] - row["x1"], row["y2"] - row["y1"])
        ends = row["x1"], row["y1"], place.width - row["x2"], place.height - row["y2"]
        marked += [row] * (min(ends) <= 0.05 * size)
    assert across.x1 in [row["x1"] for row in marked]
    html = (tmp_path / "cut" / "scan.html").read_text(encoding="utf-8")
    assert html.count("part of the lesion was not seen") == len(marked) < len(table)


def test_the_csv_computes_and_obeys_nothing(folder: Path) -> None:
    with (folder / "lesions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        for value in row.values():
            number = re.fullmatch(r"-?[\d.]+(e-?\d+)?", value)
            assert number or not value.lstrip().startswith(("=", "+", "-", "@"))
            assert "\u202e" not in value
    assert any(row["photo"].startswith("'=cmd") for row in rows)


def test_coco_is_read_back(folder: Path, result: ScanResult) -> None:
    images = list(read_coco(folder / "lesions.coco.json").images.values())
    assert [len(image.boxes) for image in images] == [len(p.lesions) for p in result.photos]
    raw = json.loads((folder / "lesions.coco.json").read_text())
    assert sorted(one["rank"] for one in raw["annotations"]) == list(
        range(1, len(result.ranked) + 1)
    )


def test_two_photos_of_one_name_stay_two(result: ScanResult, tmp_path: Path) -> None:
    from skindx.scan.outputs.scan_files import write_coco

    same = replace(result, photos=tuple(replace(photo, name="a.jpg") for photo in result.photos))
    write_coco(tmp_path, same)
    raw = json.loads((tmp_path / "lesions.coco.json").read_text())
    assert [image["file_name"] for image in raw["images"]] == ["a.jpg", "a.jpg"]
    assert len(raw["annotations"]) == len(result.ranked)


def test_crops_show_the_lesion_and_carry_no_metadata(folder: Path, result: ScanResult) -> None:
    for path in (*folder.glob("crops/*.jpg"), *folder.glob("overviews/*.jpg")):
        data = path.read_bytes()
        assert b"Exif" not in data
        image = Image.open(io.BytesIO(data))
        assert image.format == "JPEG"
        assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    first = result.ranked[0]
    pixels = np.asarray(Image.open(folder / "crops/0001.jpg")).astype(int)
    middle = pixels[pixels.shape[0] // 2, pixels.shape[1] // 2]
    assert middle.sum() < pixels[3, 3].sum() - 60, first


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.tags: list[str] = []
        self.styled = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data", "xlink:href"}:
                self.references.append(value or "")
            self.styled += name == "style"
            if name.startswith("on"):
                self.handlers.append(name)


def parsed(html: str) -> Page:
    page = Page()
    page.feed(html)
    return page


def test_the_page_needs_nothing_from_outside(folder: Path, result: ScanResult) -> None:
    html = (folder / "scan.html").read_text(encoding="utf-8")
    ET.fromstring(html)  # HTML that is XML as well: every tag closed, every value quoted
    page = parsed(html)
    for reference in page.references:
        assert reference.startswith(("data:image/jpeg;base64,", "#lesion-", "#outline-"))
    assert page.handlers == []
    assert page.styled == 0  # the policy allows no style but the one with its hash
    assert page.tags.count("script") == 1
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", html)
    for element in ("style", "script"):
        body = re.search(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        assert body is not None
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in html
    assert "default-src 'none'" in html


def test_the_page_has_every_lesion_and_says_what_it_is_not(
    folder: Path, result: ScanResult
) -> None:
    tree = ET.fromstring((folder / "scan.html").read_text(encoding="utf-8"))
    text = " ".join("".join(tree.itertext()).split()).replace("\N{NO-BREAK SPACE}%", " %")
    assert not_a_diagnosis() in text
    assert missed_sentence(BANDS, [found.diameter_px for found in result.ranked], PHOTOS) in text
    assert "2 of 48 tiles" in text
    assert "\u202e" not in text
    rows = [row for row in tree.iter("tr") if row.get("id")]
    assert [row.get("id") for row in rows] == [f"lesion-{one.rank}" for one in result.ranked]
    marks = {group.get("id") for group in tree.iter("{http://www.w3.org/2000/svg}g")}
    assert marks == {f"outline-{found.rank}" for found in result.ranked}
    assert all(image.get("alt") for image in tree.iter("img"))


def test_the_pdf_says_the_same(
    result: ScanResult, reads: list[ArrayPhoto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    text = words_of(pdf_bytes(result, reads))
    assert "no diagnosis and no medical device" in text
    assert "Lesions by rank" in text
    assert f"{len(result.ranked)} lesions are outlined" in text


@pytest.mark.parametrize("count", [0, 1, 4])
def test_few_lesions_still_make_a_scan(count: int, tmp_path: Path, reads: list[ArrayPhoto]) -> None:
    found = [lesion(100 + 90 * k, 100, ood=None, possible=()) for k in range(count)]
    plain = scan_of(found, size_wh=SIZE, recall=None, miss_rate=None)
    write_scan(tmp_path / "scan", plain, reads[:1])
    html = (tmp_path / "scan/scan.html").read_text(encoding="utf-8")
    ET.fromstring(html)
    assert catalogue.text("scan_missed_unmeasured") in unescape(html)
    assert ("outlined no lesion" in html) == (count == 0)
    assert pq.read_table(tmp_path / "scan/lesions.parquet").num_rows == count


def test_an_older_scan_stays_until_the_new_one_is_whole(
    result: ScanResult, reads: list[ArrayPhoto], tmp_path: Path
) -> None:
    small = scan_of([lesion()], size_wh=SIZE)
    write_scan(tmp_path / "scan", small, reads[:1])
    before = (tmp_path / "scan/scan.html").read_bytes()
    calls = 0

    def breaks(*region: float) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise OSError(28, "No space left on device")
        return reads[0](*region)  # type: ignore[arg-type]

    with pytest.raises(OSError, match="No space left"):
        write_scan(tmp_path / "scan", result, [breaks, breaks])
    assert (tmp_path / "scan/scan.html").read_bytes() == before
    assert not list((tmp_path / "scan").glob(".results-*"))
    write_scan(tmp_path / "scan", replace(small, made_at=WHEN + timedelta(1)), reads[:1])
    assert read_summary(tmp_path / "scan").made_at == WHEN + timedelta(1)


def test_what_is_no_scan_stays(tmp_path: Path, reads: list[ArrayPhoto]) -> None:
    small = scan_of([lesion()], size_wh=SIZE)
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / ".results-killed").mkdir()
    write_scan(tmp_path, small, reads[:1])
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert not list(tmp_path.glob(".results-*"))
    with pytest.raises(UserError, match="no folder"):
        write_scan(tmp_path / "thesis.tex", small, reads[:1])
    (tmp_path / "crops/holiday.jpg").write_bytes(b"")
    with pytest.raises(UserError, match=r"holiday\.jpg belongs to no scan"):
        write_scan(tmp_path, small, reads[:1])
    assert (tmp_path / "crops/0001.jpg").is_file()


def move_and_die(source: Path, target: Path) -> None:
    """Move results; the process kills itself before the fourth file."""
    moves, replace = count(1), Path.replace

    def dies(path: Path, to: Path) -> Path:
        if next(moves) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, to)

    Path.replace = dies  # type: ignore[method-assign]
    move(source, target, "scan.json")


def test_a_kill_leaves_no_half_scan(tmp_path: Path, reads: list[ArrayPhoto]) -> None:
    small = scan_of([lesion()], size_wh=SIZE)
    write_scan(tmp_path, small, reads[:1])
    write_scan(tmp_path / "new", small, reads[:1])
    (tmp_path / "new").rename(tmp_path / ".results-new")
    killed = forked(lambda: move_and_die(tmp_path / ".results-new", tmp_path))
    assert killed == [-signal.SIGKILL]
    with pytest.raises(UserError, match="is not the folder of a scan"):
        read_summary(tmp_path)
    write_scan(tmp_path, small, reads[:1])  # the same command goes on
    assert read_summary(tmp_path).lesions == 1
    assert not list(tmp_path.glob(".results-*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "is not the folder of a scan"), ("[]", "format None"), ('{"format": 9}', "format 9"),
     ('{"format": 1}', "damaged")],
)  # fmt: skip
def test_a_damaged_scan_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "scan.json").write_text(text)
    with pytest.raises(UserError, match=words):
        read_summary(tmp_path)


def test_missed_lesions_by_hand() -> None:
    bands = (size_recall(10, 20, 50, 100), size_recall(20, 40, 90, 100), size_recall(40, 80, 0, 0))
    small, large, none = missed_by_size(bands, [12, 15, 18, 19.9, 20, 30, 39, 50], PHOTOS)
    assert (small.detected, large.detected, none.detected) == (4, 3, 1)
    assert small.missed is not None
    assert small.missed.value == pytest.approx(4)  # half of them are found
    low, high = small.band.recall.low, small.band.recall.high
    assert small.missed.low == pytest.approx(4 * (1 - high) / high)
    assert small.missed.high == pytest.approx(4 * (1 - low) / low)
    assert large.missed is not None
    assert large.missed.value == pytest.approx(3 / 9)
    assert none.missed is None
    assert "30 %" in missed_sentence(bands, [12, 15], PHOTOS)
    unmeasured = catalogue.text("scan_missed_unmeasured")
    assert missed_sentence(None, [12], PHOTOS) == unmeasured
    assert missed_sentence((), [12], PHOTOS) == unmeasured
    assert "images are clinical photos, and the rate" in missed_sentence(bands, [12], PHOTOS)


@pytest.mark.parametrize(
    ("painted", "words"),
    [
        ("all", "missed 60 of 200 lesions of synthetic images, which says nothing"),
        ("some", "200 lesions of photos and synthetic images, which says nothing"),
        ("", "200 lesions of images that may be no photos, which says nothing"),
    ],
)
def test_what_was_measured_on_paintings_promises_nothing_of_photos(
    painted: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On page, paper and table, and in the JSON of the server."""
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    bands = (size_recall(10, 20, 50, 100), size_recall(20, None, 90, 100))
    found = [lesion(80, 80, 60), lesion(200, 90, 15)]
    result = scan_of(found, recall=bands, measured_on=ImageOrigin(painted=painted))
    read = ArrayPhoto(paint(found, (900, 1200)))
    write_scan(tmp_path, result, [read])
    (tmp_path / "lesions.json").write_text('{"problems": []}')
    page, paper = render_scan(result, [read]), words_of(pdf_bytes(result, [read]))
    answer = answer_of(tmp_path, SimpleNamespace(classes=CLASSES))
    for said in (page, paper, answer.missed):
        assert words in said
        assert "at that rate" not in said
    assert page.count("cannot be said") == 2
    assert answer.recall
    assert [one.missed_here for one in answer.recall] == [None, None]
    assert answer.measured_on in words
    older = json.loads((tmp_path / "scan.json").read_text())
    del older["measured_on"]
    (tmp_path / "scan.json").write_text(json.dumps(older))
    assert "may be no photos" in answer_of(tmp_path, SimpleNamespace(classes=CLASSES)).missed


def test_hostile_class_names_stay_text(result: ScanResult, reads: list[ArrayPhoto]) -> None:
    classes = tuple(one.model_copy(update={"name": HOSTILE}) for one in result.classes)
    html = render_scan(replace(result, classes=classes), reads)
    ET.fromstring(html)
    assert "<script>alert" not in html
    assert parsed(html).tags.count("script") == 1


class Halves:
    """A photo at full size and at halves of it."""

    def __init__(self, pixels_HW3: np.ndarray) -> None:
        self.pixels = [pixels_HW3]
        while min(self.pixels[-1].shape[:2]) > 20:
            self.pixels.append(ArrayPhoto(self.pixels[-1])(*self._whole(self.pixels[-1]), 0.5))

    @staticmethod
    def _whole(pixels: np.ndarray) -> tuple[int, int, int, int]:
        return 0, 0, pixels.shape[1], pixels.shape[0]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [self.size(level) for level in range(len(self.pixels))]

    def size(self, level: int = 0) -> tuple[int, int]:
        return self.pixels[level].shape[1], self.pixels[level].shape[0]

    def to_full(self, level: int) -> tuple[float, float, float]:
        return float(1 << level), 0.0, 0.0

    def read(self, level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        assert min(left, top) >= 0
        assert left + width <= self.size(level)[0]
        assert top + height <= self.size(level)[1]
        return self.pixels[level][top : top + height, left : left + width]


@given(st.integers(0, 600), st.integers(0, 400), st.floats(0.02, 1), st.integers(1, 300))
def test_halves_give_the_regions_of_the_whole(x: int, y: int, scale: float, side: int) -> None:
    smooth = np.linspace(0, 255, 640 * 480 * 3).reshape(480, 640, 3).astype(np.uint8)
    x, y = min(x, 639), min(y, 479)
    region = x, y, min(x + side, 640), min(y + side, 480)
    whole, levelled = ArrayPhoto(smooth)(*region, scale), LevelledPhoto(Halves(smooth))
    found = levelled(*region, scale)
    assert min(found.shape[:2]) >= 1
    for size, other in zip(found.shape[:2], whole.shape[:2], strict=True):
        assert abs(size - other) <= 1 + other * 0.1
    assert abs(found.mean() - whole.mean()) < 6 + 2 / scale


def test_a_bundle_says_what_its_lesions_may_be(tiny_bundle: Path, result: ScanResult) -> None:
    bundle = open_bundle(tiny_bundle)
    found = result_of(bundle, result.photos, WHEN, problems=("A tile was lost.",))
    assert [one.key for one in found.classes] == list(bundle.taxonomy.keys)
    assert found.source.digest == bundle.digest
    assert (found.miss_rate is None) == (bundle.spec.urgent_risk is None)
    assert found.recall is None
    assert problems(found) == ["A tile was lost."]


def test_a_large_photo_is_shrunk_some_rows_at_a_time() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (150, 40, 3)).astype(np.uint8)
    fine = np.asarray(Image.fromarray(noise).resize((400, 1500), Image.Resampling.BICUBIC))
    halves = Halves(fine)
    most = 0
    read = halves.read

    def counted(level: int, left: int, top: int, width: int, height: int) -> np.ndarray:
        nonlocal most
        most = max(most, height)
        return read(level, left, top, width, height)

    halves.read = counted  # type: ignore[method-assign]
    shrunk = LevelledPhoto(halves)(0, 0, 400, 1500, 0.6)
    assert shrunk.shape == (900, 240, 3)
    assert most < 450
    at_once = ArrayPhoto(fine)(0, 0, 400, 1500, 0.6)
    assert np.abs(shrunk.astype(int) - at_once).mean() < 1.5


def test_what_a_scan_missed_has_an_interval_with_a_width() -> None:
    band = size_recall(10, 40, 516, 533)
    (missed,) = missed_by_size([band], [20.0] * 5, PHOTOS)
    assert missed.shown_missed == "about 0 (0 to 1)"
    assert Missed(size_recall(40, 80, 0, 0), 2, None).shown_recall == "not measured"


def test_a_scan_says_what_its_model_learned_from(result: ScanResult) -> None:
    origin = ImageOrigin(painted="all", modality="dermoscopic")
    update = {"learned_from": origin.warning, "expects": origin.expects}
    painted = replace(result, source=result.source.model_copy(update=update))
    for text in (painted.scope.text, summary_of(painted, ["a", "b"]).scope.text):
        assert origin.warning in text
        assert "no wide photo is one" in text
        assert "give photos taken through a dermatoscope" not in text  # as none can be
    assert "paintings" not in result.scope.text
