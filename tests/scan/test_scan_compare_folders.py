"""`skindx scan compare` from folder to page, and what it refuses."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from painted_bodies import CLASSES, PHOTOS, SOURCE, WHEN, size_recall
from seen_bodies import Body, paint_body, seen_again
from typer.testing import CliRunner
from whole_photo import ArrayPhoto

from skindx.cli.scan import app
from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.scan.compare.changes import KINDS
from skindx.scan.compare.scan_comparison import (
    PAGE,
    TABLE,
    ScanComparison,
    compare,
    write_comparison,
)
from skindx.scan.outputs.scan_files import write_scan
from skindx.scan.outputs.scan_result import ScanResult
from skindx.scan.scanned_lesions import ScannedLesion, ScannedPhoto

SIZE = (640, 480)


def write(folder: Path, bodies: dict[str, Body], lost: int = -1) -> Path:
    """Write the scan of bodies in which a detector found all whole lesions but one."""
    photos = []
    for name, body in bodies.items():
        lesions = tuple(
            ScannedLesion(
                Box(*body.boxes[number].tolist(), "lesion", "detector", 0.9),
                np.array([0.9, 0.05, 0.05]), 0.05, False, ("nevus",), 0.5,
                np.eye(8)[number % 8].astype(np.float32),
                tuple(body.colours_N3[number].tolist()),
            )
            for number in np.flatnonzero(body.inside())
            if number != lost
        )  # fmt: skip
        photos.append(ScannedPhoto(name, "ab" * 32, *SIZE, 9, 1, 0, lesions))
    recall = (size_recall(0, None, 90, 100),)
    result = ScanResult(tuple(photos), CLASSES, SOURCE, WHEN, recall, PHOTOS)
    write_scan(folder, result, [ArrayPhoto(body.pixels_HW3) for body in bodies.values()])
    return folder


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two scans of one person; back and front are swapped in the second."""
    folder = tmp_path_factory.mktemp("visits")
    back = paint_body(np.random.default_rng(1), 20, SIZE)
    front = paint_body(np.random.default_rng(2), 10, SIZE)
    again = seen_again(np.random.default_rng(3), back, 8, 1.05)
    inside = np.flatnonzero(back.inside() & again.inside())
    largest = inside[np.argmax(back.sizes_N[inside])]
    sizes = again.sizes_N.copy()
    sizes[largest] *= 1.8
    again = replace(again, sizes_N=sizes)
    lost = int(next(number for number in inside if number != largest))
    front_again = seen_again(np.random.default_rng(4), front, -5, 0.97)
    return (
        write(folder / "2025", {"=back.jpg": back, "front.jpg": front}),
        write(folder / "2026", {"a.jpg": front_again, "b.jpg": again}, lost),
    )


@pytest.fixture(scope="module")
def comparison(scans: tuple[Path, Path]) -> ScanComparison:
    return compare(*scans)


def test_photos_find_their_partner_and_lesions_their_kind(
    comparison: ScanComparison, tmp_path: Path
) -> None:
    partners = {photo.after.photo.name: photo.before.photo.name for photo in comparison.photos}
    assert partners == {"a.jpg": "front.jpg", "b.jpg": "=back.jpg"}
    assert comparison.count("grown") == 1
    assert comparison.count("vanished") >= 1
    write_comparison(tmp_path / "out", comparison)
    html = (tmp_path / "out" / PAGE).read_text(encoding="utf-8")
    tree = ET.fromstring(html)
    text = " ".join("".join(tree.itertext()).split()).replace("\N{NO-BREAK SPACE}", " ")
    kinds = [f"{comparison.count(kind)} {kind}" for kind in KINDS[:4]]
    assert f"Compared scans: {', '.join(kinds)}" in text
    assert "no diagnosis" in text
    assert "The diameter is 1." in text
    assert "The detector misses 10 % of lesions of this size" in text
    assert "script" not in {element.tag for element in tree.iter()}
    assert "style=" not in html
    with (tmp_path / "out" / TABLE).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(photo.changes) for photo in comparison.photos)
    assert {row["photo_before"] for row in rows} == {"'=back.jpg", "front.jpg"}
    grown = next(row for row in rows if row["kind"] == "grown")
    assert 1 < float(grown["growth_low"]) < 1.8 < float(grown["growth_high"])


def test_the_verb_writes_a_page_and_refuses_in_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "compared"
    first = write(tmp_path / "first", {"c.jpg": paint_body(np.random.default_rng(8), 20, SIZE)})
    done = CliRunner().invoke(app, ["compare", str(first), str(first), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert (out / PAGE).is_file()
    assert "0 new, 0 grown, 0 changed and 0 vanished" in done.output
    other = write(tmp_path / "other", {"c.jpg": paint_body(np.random.default_rng(9), 20, SIZE)})
    refused = CliRunner().invoke(app, ["compare", str(first), str(other)])
    assert isinstance(refused.exception, UserError)
    assert "different people" in str(refused.exception)
    assert not (tmp_path / "comparison").exists()


def test_what_is_no_scan_is_refused(scans: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a scan"):
        compare(scans[0], tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(scans[1], broken)
    (broken / "overviews/01.jpg").write_bytes(b"no image")
    with pytest.raises(UserError, match="is damaged"):
        compare(scans[0], broken)
    (broken / "lesions.parquet").unlink()
    with pytest.raises(UserError, match="is damaged"):
        compare(scans[0], broken)
    summary = (broken / "scan.json").read_text()
    (broken / "scan.json").write_text(summary.replace("overviews/01.jpg", "../../../etc/passwd"))
    with pytest.raises(UserError, match="is damaged"):
        compare(scans[0], broken)


def test_other_folders_are_never_replaced(comparison: ScanComparison, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"other files \(thesis.tex\), which a comparison"):
        write_comparison(tmp_path, comparison)
    assert (tmp_path / "thesis.tex").is_file()
