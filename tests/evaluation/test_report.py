import dataclasses
import io
import re
import shutil
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from evaluation_fakes import CLASSES, fake_class, prediction, records_of, scored, simulate
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console

from skindx.core.errors import UserError
from skindx.core.measurement import MeasurementOrigin
from skindx.data.manifest import Record
from skindx.evaluation.answers import Answers
from skindx.evaluation.evaluation_report import print_table, render_report
from skindx.evaluation.figures import bounds, decimal, percent, points
from skindx.evaluation.guarantee_scores import SetScore, SetScores
from skindx.evaluation.image_table import (
    MistakeStrip,
    check_pictures,
    read_image_table,
    worst_mistakes,
)
from skindx.evaluation.member_gains import FigureGain, MemberChoice, MemberGain
from skindx.evaluation.report_plots import (
    confusion_cells,
    confusion_plot,
    has_counts,
    reliability_plot,
    risk_plot,
    sensitivity_plot,
)
from skindx.evaluation.score import Evaluation, measure
from skindx.metrics import DetectionScore, Interval
from skindx.models.ensemble import Prediction
from skindx.texts.catalogue import text

ORIGIN = MeasurementOrigin(
    bundle="runs/demo/bundle",
    dataset="runs/demo/dataset",
    manifest_sha256="ab" * 32,
    split="test",
    seed=0,
    date="2025-01-02T03:04:05+00:00",
    hardware="a processor, 2 cores",
    versions={"skindx": "0.1.0"},
    taxonomy_review="not clinically reviewed",
)
MM = 96 / 25.4  # pixels of a page in a browser
HOSTILE = '<img src=x onerror="alert(1)">&</title>'


def read(record: Record) -> NDArray[np.uint8]:
    return np.full((20, 30, 3), 120, np.uint8)


@pytest.fixture(scope="module", autouse=True)
def plots() -> None:
    """Draw the plots, where a test does not leave them out."""


@cache
def simulated(n: int = 60, classes: tuple[fake_class, ...] = CLASSES) -> Evaluation:
    labels, table = simulate(n)
    names = [condition.key for condition in CLASSES]
    records = records_of([classes[names.index(label)].key for label in labels])
    return scored(records, table, ["alpha", "beta"], classes=classes, draws=100)


def render(evaluation: Evaluation, origin: MeasurementOrigin = ORIGIN) -> str:
    labels, table = simulate(60)
    mistakes = strips(records_of(labels), table)
    assert any(mistake.jpeg for strip in mistakes for mistake in strip.mistakes)
    return render_report(evaluation, origin, mistakes)


@cache
def page() -> str:
    """Return the report of all that is simulated."""
    return render(simulated())


def strips(
    records: list[Record], table: list[Prediction], pictures: str = "licensed", licence: str = "CC0"
) -> list[MistakeStrip]:
    answers = Answers.join(
        records, table, CLASSES, table[0].member_probabilities_MC.shape[0] * ["m"]
    )
    records = [dataclasses.replace(record, licence=licence) for record in records]
    return worst_mistakes(records, answers, Path("nowhere"), read, pictures)  # type: ignore[arg-type]


class References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "data"}:
                self.found.append(value or "")
            if name.startswith("on"):
                self.scripts.append(name)
        if tag in {"script", "link", "iframe"}:
            self.scripts.append(tag)


def test_the_page_is_well_formed_and_asks_for_nothing_outside() -> None:
    html = page()
    ET.fromstring(html)  # HTML that is XML as well: every tag closed, every value quoted
    references = References()
    references.feed(html)
    assert references.found
    assert all(address.startswith("data:image/jpeg;base64,") for address in references.found)
    assert references.scripts == []
    assert not re.search(r"https?://|url\(|@import", html)


def test_every_class_and_figure_is_there() -> None:
    evaluation = simulated()
    text = " ".join(ET.fromstring(page()).itertext())
    assert not re.search(r"\d %", text)  # a figure never stands on another line than its unit
    text = text.replace("\N{NO-BREAK SPACE}%", " %")
    for condition in evaluation.classes:
        assert condition.name in text
    for scores in (evaluation.ensemble, *evaluation.members):
        for interval in (scores.top1, scores.balanced_accuracy):
            assert percent(interval) in text
            assert bounds(interval) in text
        assert f"{decimal(scores.auroc)} {bounds(scores.auroc, 'decimal')}" in text
    assert "no image in this split" in text
    assert "No medical device" in text
    assert "not clinically reviewed" in text
    assert "a processor, 2 cores" in text
    assert ORIGIN.manifest_sha256 in text


def test_every_image_has_words() -> None:
    tree = ET.fromstring(page())
    images = tree.findall(".//img")
    plots = [svg for svg in tree.iter("svg") if svg.get("aria-hidden") != "true"]
    assert images
    assert all(image.get("alt") for image in images)
    assert plots
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in plots)


def test_hostile_names_stay_text() -> None:
    hostile = (CLASSES[0].model_copy(update={"name": HOSTILE}), *CLASSES[1:])
    origin = dataclasses.replace(ORIGIN, bundle=HOSTILE, dataset=HOSTILE, versions={HOSTILE: "1"})
    html = render(simulated(classes=hostile), origin)
    tree = ET.fromstring(html)
    assert HOSTILE in "".join(tree.itertext())
    assert "<img src=x" not in html
    assert tree.find(".//script") is None


def test_the_first_page_says_what_it_does_and_the_limits_and_main_figures_follow() -> None:
    evaluation = simulated()
    (first,) = ET.fromstring(page()).findall(".//div[@class='first']")
    text = " ".join(" ".join(first.itertext()).split()).replace("\N{NO-BREAK SPACE}", " ")
    assert "60 test images in 60 groups, 4 classes: " in text
    assert "fitted on other images, and nothing was chosen by these" in text
    assert "names no skin type, no age, no sex" in text
    assert [part.text for part in first.iter("h2")] == [
        "What it does, as served",
        "What was tested",
        "Limits",
    ]
    _, _, main = page().partition("<h2>Main figures</h2>")
    table = ET.fromstring("<t>" + main.partition("</section>")[0] + "</t>")
    text = " ".join(" ".join(table.itertext()).split()).replace("\N{NO-BREAK SPACE}", " ")
    at = evaluation.questions[0].operating
    for figure in (at.sensitivity, at.specificity, at.here.ppv, at.here.npv, at.stated[0].npv):
        assert f"{percent(figure)} {bounds(figure)}" in text
    assert f"Top-1 {percent(evaluation.ensemble.top1)} {bounds(evaluation.ensemble.top1)}" in text
    chosen = render(evaluation, dataclasses.replace(ORIGIN, split="val"))
    assert "its figures are no test" in chosen


@pytest.mark.parametrize("n", [1, 2, 40])
def test_few_images_still_make_a_page(n: int) -> None:
    ET.fromstring(render(simulated(n)))


def test_the_first_page_says_what_the_bundle_may_be_used_for() -> None:
    said = dataclasses.replace(ORIGIN, use=f"Research <b> only. {HOSTILE}")
    text = " ".join(ET.fromstring(render(simulated(2), said)).itertext())
    assert "Research <b> only." in text.partition("What was tested")[0]
    assert said.to_dict()["use"] == said.use
    assert "use" not in ORIGIN.to_dict()


def test_one_member_and_no_mistake() -> None:
    records = records_of(["nevus", "wart"])
    table = [prediction((1.0, 0, 0, 0)), prediction((0, 0, 0, 1.0))]
    evaluation = scored(records, table, ["only"], draws=20)
    assert strips(records, table) == []
    text = " ".join(ET.fromstring(render_report(evaluation, ORIGIN)).itertext())
    assert "one member" in text
    assert "No mistakes." in text
    assert "Most confident mistakes" not in text
    assert "Urgent classes" not in text
    assert "there is no figure for missing them" in text


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"detector": DetectionScore(0.71, 0.42, 9, 11)}, "mAP50-95 0.420"),
        ({"has_detector": True}, "no image of this split has a drawn box"),
        ({}, "The bundle has no detector"),
    ],
)
def test_the_detector_line_says_what_was_measured(changes: dict[str, object], said: str) -> None:
    evaluation = dataclasses.replace(simulated(), **changes)  # type: ignore[arg-type]
    assert said in " ".join(ET.fromstring(render(evaluation)).itertext())


def test_a_hundred_classes_fit_without_counts() -> None:
    classes = tuple(
        fake_class(f"k{i}", f"Disease number {i} with a long name indeed") for i in range(100)
    )
    random = np.random.default_rng(0)
    table = [prediction(tuple(random.dirichlet(np.ones(100)))) for _ in range(150)]
    records = records_of([f"k{i % 100}" for i in range(150)])
    evaluation = scored(records, table, ["only"], classes=classes, draws=20)
    assert not has_counts(evaluation)
    text = " ".join(ET.fromstring(render_report(evaluation, ORIGIN)).itertext())
    assert all(condition.name in text for condition in classes)


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("classes", "rows"), [(3, ["Top-1", "Top-3"]), (4, ["Top-1", "Top-3", "Top-4"])]
)
def test_each_figure_is_printed_once(classes: int, rows: list[str]) -> None:
    evaluation = dataclasses.replace(simulated(), k=min(5, classes))
    _, _, page = render(evaluation).partition("Not to be missed")  # what follows the first page
    assert re.findall(r'<th scope="row">(Top-\d)', page) == rows


def test_plots_stand_where_the_figures_say() -> None:
    evaluation = simulated()
    cells = confusion_cells(evaluation)
    assert sum(cell.count for cell in cells) == evaluation.pictures
    for row in range(3):
        line = [cell for cell in cells if cell.row == row]
        assert sum(cell.share for cell in line) == pytest.approx(1)
    counts = [one.n for one in evaluation.confusions]
    assert counts == sorted(counts, reverse=True)
    assert all(one.rate.low < one.rate.value < one.rate.high for one in evaluation.confusions)
    matrix = confusion_plot(evaluation)
    squares = {(int(s.get_x()), int(s.get_y())): s for s in matrix.axes.patches}
    assert set(squares) == {(cell.column, cell.row) for cell in cells}
    assert matrix.axes.get_ylim() == (4, 0)  # the first true class on top
    plot = reliability_plot(evaluation)
    bins = [part for part in evaluation.reliability if part.n]
    _, *marks = plot.axes.lines  # the first is the dashed one
    assert len(marks) == 2 * len(bins)
    for part, interval, dot in zip(bins, marks[::2], marks[1::2], strict=True):
        assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (part.confidence, part.accuracy)
        low, high = interval.get_ydata()
        assert 0 <= low <= part.accuracy <= high <= 1
    bars = plot.figure.axes[1].patches
    assert [bar.get_height() for bar in bars] == [part.n for part in bins]
    curve = risk_plot(evaluation)
    assert curve.axes.lines[0].get_ydata().tolist() == [p.risk for p in evaluation.risk_curve]
    assert curve.axes.get_ylim()[1] >= max(point.risk for point in evaluation.risk_curve)
    classes = sensitivity_plot(evaluation)
    assert classes is not None
    assert len(classes.axes.lines) == 2 * sum(score.n > 0 for score in evaluation.classes)


def test_a_plot_is_part_of_its_page() -> None:
    """In the colours of the page, with its tooltips, and without a reference to anything."""
    names = ("$a_b^c$ & <i>", "\N{CJK UNIFIED IDEOGRAPH-4E00}", "b", "c")
    classes = tuple(
        known.model_copy(update={"name": name}) for known, name in zip(CLASSES, names, strict=True)
    )
    evaluation = simulated(classes=classes)
    plot = confusion_plot(evaluation)
    svg = ET.fromstring(str(plot.svg()))
    assert svg.get("aria-label") == plot.label
    shown = [title.text for title in svg.iter("title")]
    assert sorted(shown) == sorted(plot.titles.values())
    assert any(text.startswith("$a_b^c$ & <i> seen as") for text in shown)
    assert "$a_b^c$ & <i>" in [text.text for text in svg.iter("text")]
    written = str(plot.svg())
    assert "var(--blue)" in written
    assert not re.search(r"#[0-9a-f]{6}|href|clip-path|\bid=|font", written)


def test_mistakes_are_the_worst_ones_of_each_group() -> None:
    said = [(0.6, 0.4, 0, 0), (0.9, 0.1, 0, 0), (0.2, 0.8, 0, 0), (0.7, 0.3, 0, 0)]
    records = records_of(["melanoma"] * 4, groups=["a", "b", "c", "b"])
    missed, confident = strips(records, [prediction(shares) for shares in said])
    assert (missed.title, confident.title) == (
        "Urgent images that are not called urgent",
        "Most confident mistakes",
    )
    for strip in (missed, confident):  # here the surest mistakes are also the least risks
        assert [(one.path, one.confidence, one.risk) for one in strip.mistakes] == [
            ("pictures/1.npy", 0.9, pytest.approx(0.1)),
            ("pictures/0.npy", 0.6, pytest.approx(0.4)),
        ]
    first = confident.mistakes[0]
    assert (first.truth, first.predicted) == ("Melanoma", "Compound nevus")
    with Image.open(io.BytesIO(first.jpeg)) as image:
        assert image.size == (30, 20)  # never enlarged
        assert not image.getexif()
    many = records_of(["melanoma"] * 30)
    for strip in strips(many, [prediction(said[0])] * 30):
        assert len(strip.mistakes) == 12
    (alone,) = strips(records_of(["nevus"]), [prediction((0.2, 0.8, 0, 0))])
    assert alone.title == "Most confident mistakes"  # no urgent image is missed


@pytest.mark.usefixtures("without_plots")
@pytest.mark.parametrize(
    ("licence", "pictures", "why"),
    [
        ("CC0", "licensed", ""),
        ("CC0", "none", "no pictures were asked for"),
        ("", "licensed", "licence unknown"),
        ("", "local", ""),
        ("ask the clinic", "local", "licence unknown"),
        ("CC BY-ND 4.0", "local", "licence no derivatives"),
        ("CC BY 4.0", "local", "attribution missing"),
        ("All rights reserved", "local", "licence reserved"),
    ],
)
def test_no_picture_is_shown_that_its_licence_forbids(
    licence: str, pictures: str, why: str
) -> None:
    records, table = records_of(["melanoma"]), [prediction((0.9, 0.1, 0, 0))]
    found = strips(records, table, pictures, licence)
    assert {one.withheld for strip in found for one in strip.mistakes} == {why}
    html = render_report(scored(records, table, ["only"], draws=5), ORIGIN, found)
    ET.fromstring(html)
    assert ("data:image/jpeg" in html) == (not why)
    assert (f"not shown: {why}" in html) == bool(why)
    assert (f"Pictures, made smaller: {licence}" in html) == bool(licence and not why)


def test_another_word_for_pictures_is_one_sentence() -> None:
    with pytest.raises(UserError, match="='all' is not known; choose one of licensed, local"):
        check_pictures("all")


def printed(evaluation: Evaluation) -> str:
    console = Console(width=140, file=io.StringIO(), color_system=None)
    print_table(evaluation, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_terminal_shows_the_same_figures() -> None:
    evaluation = simulated()
    text = printed(evaluation)
    for expected in (
        "alpha",
        "beta",
        "ensemble",
        decimal(evaluation.ensemble.auroc),
        percent(evaluation.ensemble.top1),
        bounds(evaluation.ensemble.balanced_accuracy),
        *(f"{one.member} {points(one.gain.value)}" for one in evaluation.gains[0].gains),
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        (Interval(0.05, 0.01, 0.09), r"\+5\.0 points.*\[\+1\.0, \+9\.0\].*ensemble is better"),
        (Interval(-0.05, -0.09, -0.01), r"−5\.0 points.*member is better"),
        (Interval(0.0, -0.02, 0.02), r"top-1 0\.0 points.*cannot tell them apart"),
        (Interval(0.0, float("nan"), float("nan")), r"\[–\]\.\s*$"),
    ],
)
def test_the_verdict_follows_the_interval(interval: Interval, said: str) -> None:
    choice = MemberChoice("[red]beta[/]", {"alpha": 0.04, "[red]beta[/]": 0.96})
    gain = FigureGain("top1", choice, (MemberGain("[red]beta[/]", interval),))
    text = " ".join(printed(dataclasses.replace(simulated(), gains=(gain,))).split())
    assert re.search(said, text)
    assert "[red]beta[/], chosen by top-1 in 96% of resampled validation" in text


@pytest.mark.browser
def test_a_browser_shows_it_without_a_request_or_a_complaint(
    evaluation: Path, tmp_path: Path
) -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    path = tmp_path / "report.html"
    records, predictions, answers = read_image_table(evaluation)
    whole = measure(records, predictions, answers, draws=20)
    reasons = ("It calls more than half of the images urgent.", "Melanoma has too few images.")
    html = render(dataclasses.replace(whole, not_useful=reasons))
    path.write_text(html, encoding="utf-8")
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(color_scheme="dark")
        asked, said, overflow = [], [], []
        tab.on("request", lambda request: asked.append(request.url.split(":")[0]))
        tab.on("console", lambda message: said.append(message.text))
        for width in (390, 1100):
            tab.set_viewport_size({"width": width, "height": 800})
            tab.goto(path.as_uri())
            overflow.append(tab.evaluate("document.documentElement.scrollWidth - innerWidth"))
        shown = tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        tab.emulate_media(media="print")
        tab.set_viewport_size({"width": round(178 * MM), "height": 800})
        sheet = tab.evaluate("document.querySelector('.first').offsetHeight")
        browser.close()
    assert sheet <= 265 * MM  # A4 without its margins
    assert set(asked) <= {"file", "data"}
    assert said == []
    assert max(overflow) <= 0
    assert shown


def test_long_names_cut_no_interval_off() -> None:
    evaluation = simulated()
    name = "a-network-with-a-rather-long-name-and-its-settings"
    members = tuple(dataclasses.replace(member, name=name) for member in evaluation.members)
    console = Console(width=110, file=io.StringIO(), color_system=None)
    print_table(dataclasses.replace(evaluation, members=members), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert bounds(evaluation.ensemble.top1).strip("[]").split(", ")[1] in text


@pytest.mark.usefixtures("without_plots")
def test_urgencies_stand_below_the_classes_that_they_are_parts_of() -> None:
    def row(name: str, n: int = 10, promised: float | None = None) -> SetScore:
        return SetScore(name, n, Interval(0.9, 0.8, 1.0), 2.0, Interval(2.0, 1.0, 3.0), promised)

    sets = SetScores(
        level=0.9,
        coverage=Interval(0.9, 0.8, 1.0),
        size=Interval(2.0, 1.0, 3.0),
        single=0.2,
        one_class=Interval(0.2, 0.1, 0.3),
        by_group=(row("urgent classes"), row("other classes"), row("skin type 5")),
        urgent_missed=None,
        false_alarms=None,
        by_urgency=(row("urgent"), row("soon"), row("routine")),
        by_class=(row("Melanoma"),),
        every_class=Interval(0.1, 0.05, 0.2),
    )
    assert set_rows(sets) == [
        "all urgent classes",
        "all other classes",
        "of these, urgency soon",
        "of these, urgency routine",
        "all skin type 5",
        "Melanoma",
    ]
    html = render(dataclasses.replace(simulated(), sets=sets))
    assert text("set_fitted", level=0.9) in html  # the sentence of the page and of the PDF
    assert "promise" not in html.lower()
    alone = dataclasses.replace(sets, by_group=(), by_urgency=(row("routine"),))
    assert set_rows(alone) == ["urgency routine", "Melanoma"]


def set_rows(sets: SetScores) -> list[str]:
    html = render(dataclasses.replace(simulated(), sets=sets))
    table = html.partition("<h2>Sets of classes</h2>")[2].partition("</table>")[0]
    return re.findall(r'<th scope="row">(.*?)</th>', table.partition("<tbody>")[2])
