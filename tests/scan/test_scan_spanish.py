"""A scan in Spanish: no English is left in its page, paper, list, comparison or refusals."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import spots
from english_left import english_in
from found_lesions import lesion
from painted_bodies import CLASSES, lesions_of, paint, scan_of
from painted_rulers import Painted, paint_ruler
from pdf_words import words_of
from scan_folders import visits_of
from shipped_folder import PLANTED, shipped
from spots import photo_with, save
from typer.testing import CliRunner
from whole_photo import ArrayPhoto, ThisProcess

from skindx.cli.scan import app
from skindx.core.errors import UserError
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.report import pdf_sheet
from skindx.models.conformal import Share
from skindx.models.shipped_detector import PlantedRecall
from skindx.scan import scan_run
from skindx.scan.compare.registration import read_scan
from skindx.scan.compare.scan_comparison import PAGE as COMPARISON
from skindx.scan.compare.scan_comparison import TABLE, compare, render_comparison, write_comparison
from skindx.scan.outputs.scan_files import CSV, write_lesion_list, write_scan
from skindx.scan.outputs.scan_pages import PAGE, PDF
from skindx.scan.outputs.scan_result import SUMMARY, ScanResult, missed_sentence, read_summary
from skindx.scan.photo_store import Header, NotScannedError
from skindx.scan.ruler import find_ruler, given_scale
from skindx.scan.work.scan_worker import ScanTaskRunner
from skindx.texts.catalogue import speaking, text
from skindx.ui.scans.scan_answer import answer_of, list_html
from skindx.ui.scans.scan_job import NoScans, ScanRefused

SIZE = (600, 800)
OLDER = Path(__file__).parents[1] / "fixtures/v0_2/scan"


@pytest.fixture(scope="module", autouse=True)
def letters_in_the_file() -> "pytest.Generator[None]":
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf_sheet, "dejavu", lambda: None)
        yield


@pytest.fixture(scope="module")
def result() -> ScanResult:
    """Return a scan in which each kind of sentence is said: of a bundle with a threshold."""
    sent_on = Share(value=0.2, low=0.1, high=0.3, pictures=64)
    cut = lesion(585, 400, 28, ood=0.001, embedding=(0.2, 0, 1, 0, 0, 0))
    scan = scan_of([*lesions_of(12, 0, SIZE), cut], lesions_of(6, 3, SIZE), size_wh=SIZE)
    lost = replace(scan.photos[0], failed_tiles=2, mm_per_pixel=None)
    return replace(scan, photos=(lost, scan.photos[1]), sent_on=sent_on)


@pytest.fixture(scope="module")
def folder(result: ScanResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spanish") / "espalda"
    reads = [ArrayPhoto(paint(list(photo.lesions), SIZE, seed=1)) for photo in result.photos]
    with speaking("es"):
        write_scan(path, result, reads)
        write_lesion_list(path, result.photos, [], CLASSES)
    return path


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with speaking("es"):
        return visits_of(tmp_path_factory.mktemp("visits"))


def read_aloud(html: str) -> str:
    """Return what a page shows and what a screen reader says of it."""
    tree = ET.fromstring(html)
    for part in tree.iter():
        if part.tag in ("style", "script"):
            part.text = ""
    names = ("alt", "aria-label", "placeholder", "title", "data-shown")
    named = [part.get(name, "") for part in tree.iter() for name in names]
    return " ".join((*tree.itertext(), *named)).replace("\xa0", " ")


def test_page_and_paper_are_spanish_and_say_so(folder: Path) -> None:
    html = (folder / PAGE).read_text(encoding="utf-8")
    assert ET.fromstring(html).get("lang") == "es"
    said = read_aloud(html)
    assert english_in(said) == []
    paper = (folder / PDF).read_bytes()
    assert b"/Lang (es)" in paper
    assert english_in(words_of(paper)) == []
    with speaking("es"):
        for key in ("scan_notice", "scan_notice_errs", "notice_translation", "scan_cut"):
            assert text(key) in said, key
        assert text("scan_notice") in " ".join(words_of(paper).split())
    assert re.search(r"\d,\d mm", said), "a comma in a decimal"


def test_the_list_and_the_answer_are_spanish_and_keys_stay(folder: Path) -> None:
    with speaking("es"):
        answer = answer_of(folder, SimpleNamespace(classes=CLASSES))  # type: ignore[arg-type]
        listing = list_html(folder, answer)
    assert '<div lang="es"' in listing
    shown = unescape(re.sub(r"<[^>]*>", " ", listing)).replace("\xa0", " ")
    assert english_in(shown) == []
    for said in (answer.notice, answer.missed, answer.threshold, answer.measured_on):
        assert said
        assert english_in(said) == []
    assert "carcinoma espinocelular invasivo" in answer.unknown_urgent
    header = (folder / CSV).read_text(encoding="utf-8").partition("\n")[0]
    assert header.startswith("rank,photo,")
    assert json.loads((folder / SUMMARY).read_text())["language"] == "es"
    assert {one.most_likely for one in answer.lesions} <= {one.key for one in CLASSES}


def test_an_english_scan_names_no_language_so_that_older_versions_read_it(tmp_path: Path) -> None:
    write_scan(tmp_path / "scan", scan_of([lesion()]), [ArrayPhoto(paint([lesion()]))])
    assert "language" not in json.loads((tmp_path / "scan" / SUMMARY).read_text())


@pytest.mark.parametrize("language", ["es", "en"])
def test_a_comparison_is_in_the_language_of_its_reader(
    visits: tuple[Path, Path], language: str, tmp_path: Path
) -> None:
    """Both scans are Spanish; what their files keep in Spanish is said anew where it can be."""
    with speaking(language):
        comparison = compare(*visits)
        html = render_comparison(comparison)
        write_comparison(tmp_path / "out", comparison)
        expected = [text("unchanged_dangerous"), text("compared_grown_means")]
    assert ET.fromstring(html).get("lang") == language
    said = read_aloud(html)
    assert (english_in(said) == []) == (language == "es")
    assert all(sentence in said for sentence in expected)
    assert bool(re.search(r"\b(lesiones|piel|foto de)\b", said)) == (language == "es")
    rows = (tmp_path / "out" / TABLE).read_text(encoding="utf-8")
    assert {"grown", "same"} <= set(re.findall(r"\b(grown|same|new)\b", rows)), "codes stay"


def test_a_scan_of_an_older_version_opens_in_spanish(tmp_path: Path) -> None:
    shutil.copytree(OLDER, tmp_path / "older")
    with speaking("es"):
        summary = read_summary(tmp_path / "older")
        assert summary.language == "en"
        assert english_in(summary.without_urgent) == []
        scan = read_scan(tmp_path / "older")
        html = render_comparison(compare(tmp_path / "older", tmp_path / "older"))
    assert len(scan.views) == len(summary.photos)
    assert ET.fromstring(html).get("lang") == "es"


def test_what_a_kept_scan_cannot_rule_out_is_said_in_the_language_of_its_reader(
    visits: tuple[Path, Path],
) -> None:
    summary = read_summary(visits[0])
    assert summary.warning.startswith("Cualquier foto puede mostrar")
    assert summary.scope.warning.startswith("Any photo may show")
    with speaking("es"):
        assert summary.scope.warning == summary.warning
    assert english_in(summary.scope.text) != []


def test_what_was_missed_is_said_in_spanish_for_every_origin() -> None:
    from painted_bodies import BANDS

    origins = [ImageOrigin(painted=one) for one in ("", "some", "all")]  # type: ignore[arg-type]
    origins += [
        ImageOrigin(painted="none", modality=one)  # type: ignore[arg-type]
        for one in ("", "dermoscopic", "clinical", "mixed")
    ]
    with speaking("es"):
        said = [missed_sentence(BANDS, [20.0], one) for one in origins]
        said += [missed_sentence(None, [], origins[0]), *(one.measured_on for one in origins)]
        said.append(PlantedRecall.model_validate(PLANTED).promise)
    assert len(set(said)) == len(said)
    assert english_in(" ".join(said)) == []


def refused(call: Callable[[], object]) -> str:
    with pytest.raises((UserError, NotScannedError)) as error:
        call()
    return str(error.value)


def test_refusals_are_spanish(tmp_path: Path) -> None:
    plain = np.full((300, 400, 3), 200, np.uint8)
    header = {"suffix": ".jpg", "size_bytes": 10**9, "width": 4000, "height": 3000, "pages": 1,
              "bits": 8, "colours": "srgb", "interlaced": False}  # fmt: skip
    odd = [{"pages": 2}, {"bits": 16}, {"colours": "cmyk"}, {"colours": "lab"}, {"width": 200},
           {"size_bytes": 10, "width": 9000}, {"width": 90_000}, {"width": 10**6},
           {"suffix": ".webp", "width": 60_000, "height": 40_000},
           {"interlaced": True, "width": 20_000, "height": 10_000}]  # fmt: skip
    inches = paint_ruler(Painted(steps=((16, 6.0), (8, 5.0), (4, 4.0), (2, 3.0), (1, 2.0))))[0]
    with speaking("es"):
        said = [refused(Header(**header | one).check) for one in odd]  # type: ignore[arg-type]
        for pixels in (plain, inches):
            read, (height, width) = ArrayPhoto(pixels), pixels.shape[:2]
            said.append(refused(lambda: find_ruler(read, width, height, "brazo.jpg")))  # noqa: B023
        said += [refused(lambda: given_scale(50)), str(NoScans(409))]
        said += [str(NoScans(501, ["pyvips"], "scan")), str(ScanRefused(429, "scan_busy", 30))]
        said.append(refused(lambda: read_summary(tmp_path)))
    assert [one for one in said if english_in(re.sub(rf"`[^`]*`|{tmp_path}", "", one))] == []
    assert str(NoScans(409)).startswith("The bundle of this server has no detector")


def test_a_comparison_speaks_spanish_in_the_terminal(
    visits: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "salida"
    command = ["compare", *map(str, visits), "--out", str(out), "--language", "es"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Si ve que una lesión cambió")
    assert ET.fromstring((out / COMPARISON).read_text(encoding="utf-8")).get("lang") == "es"
    wrong = CliRunner().invoke(app, [*command[:-1], "tlh"])
    assert "no language 'tlh'" in str(wrong.exception)


def test_a_scan_speaks_spanish_in_the_terminal(
    whole_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = partial(ThisProcess, make_runner=partial(ScanTaskRunner, load=spots.load))
    monkeypatch.setattr(scan_run, "run_scan", partial(scan_run.run_scan, make_workers=here))
    photo = save(photo_with([(48.0, 48.0, 9.0), (200.0, 60.0, 14.0)], 400, 300), tmp_path / "a.png")
    detector, out = shipped(tmp_path / "tiny"), tmp_path / "salida"
    command = ["run", str(photo), "-b", str(whole_bundle), "-o", str(out), "--detector"]
    done = CliRunner().invoke(app, [*command, str(detector), "--language", "es"])
    assert done.exit_code == 0, done.output
    assert "a.png tiene 2 lesiones marcadas." in done.output
    with speaking("es"):
        assert PlantedRecall.model_validate(PLANTED).promise in done.output
        assert text("notice_translation") in done.output
    progress = r"^\S+: \d+ of \d+$"  # that of every verb
    assert english_in(re.sub(progress, "", done.stdout.replace(str(out), ""), flags=re.M)) == []
    assert ET.fromstring((out / PAGE).read_text(encoding="utf-8")).get("lang") == "es"
