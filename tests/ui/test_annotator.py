"""The annotator: its scaling by hand, and the page in a real chromium."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import cv2
import httpx
import numpy as np
import pytest
from annotating import annotating
from hypothesis import given
from hypothesis import strategies as st
from network_guard import guarded_environment
from served import free_port

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, read_annotations, write_proposals
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.ui.annotator.review_canvas import (
    Names,
    canvas_boxes,
    colours_of,
    drawn_boxes,
    shown_size,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

COLOURS = colours_of(["lesion", "naevus"])


def _canvas(boxes: list[dict[str, object]], **more: object) -> dict[str, object]:
    return {"image": {"url": f"/images/{'0' * 64}.jpg"}, "boxes": boxes, **more}


@st.composite
def _images(draw: st.DrawFn) -> tuple[tuple[int, int], Box]:
    width, height = draw(st.integers(64, 6000)), draw(st.integers(64, 6000))
    x1, y1 = draw(st.floats(0, width - 2)), draw(st.floats(0, height - 2))
    x2, y2 = draw(st.floats(x1 + 1, width)), draw(st.floats(y1 + 1, height))
    return (width, height), Box(x1, y1, x2, y2, "naevus")


@given(_images(), st.floats(0.05, 1))
def test_boxes_come_back_where_they_were(image: tuple[tuple[int, int], Box], factor: float) -> None:
    size_wh, box = image
    (shown,) = canvas_boxes([box], size_wh, COLOURS)
    # As the browser sends it: on a canvas that draws the image `factor` times as large.
    sent = shown | {k: shown[k] * factor for k in ("xmin", "ymin", "xmax", "ymax")}
    value = _canvas([sent | {"scaleFactor": factor, "color": "rgb(0, 0, 0)"}])
    assert drawn_boxes(value, [box], size_wh) == (Box(box.x1, box.y1, box.x2, box.y2, "naevus"),)
    (drawn,) = drawn_boxes(value, [], size_wh)  # as if it had been moved here
    for name in ("x1", "y1", "x2", "y2"):
        assert abs(getattr(drawn, name) - getattr(box, name)) < 1e-6 * max(size_wh)


def test_scaling_by_hand() -> None:
    assert shown_size((1000, 750)) == (1000, 750)
    assert shown_size((180, 180)) == (600, 600)
    assert shown_size((600, 150)) == (1280, 320)
    assert shown_size((4000, 3000)) == (1280, 960)
    assert shown_size((2560, 1)) == (1280, 1)
    sent = {"label": "lesion", "xmin": 128, "ymin": 96, "xmax": 256, "ymax": 192}
    (box,) = drawn_boxes(_canvas([sent]), [], (4000, 3000))
    assert (box.x1, box.y1, box.x2, box.y2) == (400, 300, 800, 600)
    halved = {"label": "lesion", "xmin": 5, "ymin": 6, "xmax": 50, "ymax": 60, "scaleFactor": 0.5}
    (box,) = drawn_boxes(_canvas([halved]), [], (1000, 750))
    assert (box.x1, box.y1, box.x2, box.y2) == (10, 12, 100, 120)
    small = {"label": "lesion", "xmin": 80, "ymin": 150, "xmax": 600, "ymax": 300}
    (box,) = drawn_boxes(_canvas([small]), [], (180, 180))
    assert (box.x1, box.y1, box.x2, box.y2) == (24, 45, 180, 90)


BOX: dict[str, object] = {"label": "lesion", "xmin": 1, "ymin": 1, "xmax": 9, "ymax": 9}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "cannot be read"),
        (_canvas([BOX | {"xmin": float("nan")}]), "cannot be read"),
        (_canvas([BOX | {"scaleFactor": 0}]), "cannot be read"),
        (_canvas([BOX] * 1001), "cannot be read"),
        ({"boxes": []}, "cannot be read"),
        (_canvas([BOX], orientation=1), "is turned"),
        (_canvas([BOX | {"xmax": 1}]), "empty or outside"),
        (_canvas([BOX | {"xmin": 800, "xmax": 900}]), "empty or outside"),
    ],
)
def test_what_no_browser_of_ours_sends_is_refused(value: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        drawn_boxes(value, [], (100, 100))


def test_labels_are_read_as_names_and_stored_as_labels(tmp_path: Path) -> None:
    labels = ["lesion", "naevus", "Basal_Cell_Carcinoma", "nevus"]
    known = {"naevus": "Nevus", "nevus": "Nevus", "Basal_Cell_Carcinoma": "Basal cell carcinoma"}
    names = Names(labels, known)
    assert names.all == ("Lesion", "Nevus (naevus)", "Basal cell carcinoma", "Nevus (nevus)")
    boxes = tuple(Box(0, 0, 9, 9, label) for label in labels)
    assert [box.label for box in names.shown(boxes)] == list(names.all)
    assert names.stored(names.shown(boxes)) == boxes
    assert names.stored([Box(0, 0, 9, 9, "nobody's")])[0].label == "nobody's"
    assert names.name("Not_A_Label") == "Not A Label"
    bare = Names.of(tmp_path, labels)  # a dataset without a taxonomy
    assert bare.all[2] == "Basal Cell Carcinoma"
    (tmp_path / "taxonomy.yaml").write_text("no: taxonomy")
    assert Names.of(tmp_path, labels).all == bare.all


# The page, in a process of its own under the network guard.

WIDE, SMALL = (2000, 1500), (320, 240)


@dataclass(frozen=True)
class Annotator:
    url: str
    folder: Path
    dataset: Path
    order: list[str]

    def boxes(self, at: int) -> tuple[Box, ...] | None:
        (record,) = (r for r in read_manifest(self.dataset) if r.sha256 == self.order[at])
        return record.boxes


def _dataset(folder: Path) -> list[str]:
    """Write a wide image with an unsure proposal, small ones with surer and without any."""
    random = np.random.default_rng(0)
    records, proposals = [], []
    for n, (width, height) in enumerate([WIDE, SMALL, SMALL, SMALL]):
        pixels = cv2.resize(random.integers(90, 230, (6, 8, 3), dtype=np.uint8), (width, height))
        data = cv2.imencode(".jpg", pixels)[1].tobytes()
        sha256, path = store_bytes(folder, data, ".jpg")
        records.append(Record(path, sha256, "0" * 16, width, height, "naevus", f"g{n}", "train"))
        if n < 2:
            box = Box(100.5, 50.25, 300.125, 200.0, "lesion", "m", 0.2 + n / 2)
            proposals.append(Annotation(sha256, "m", "", (box,)))
    write_manifest(folder, records)
    write_proposals(folder, proposals)
    Taxonomy(
        name="two",
        title="Two",
        classes=(SkinClass(key="naevus", name="Nevus (mole)"), SkinClass(key="b", name="B")),
    ).save(folder / "taxonomy.yaml")
    return [records[0].sha256, records[1].sha256, *sorted(r.sha256 for r in records[2:])]


@pytest.fixture(scope="module")
def annotator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Annotator]:
    pytest.importorskip("gradio_image_annotation")
    folder = tmp_path_factory.mktemp("annotator")
    dataset = folder / "data"
    order = _dataset(dataset)
    with annotating("serve", folder, dataset, "Dr. <Mole>") as (url, lines):
        yield Annotator(url, folder, dataset, order)
    assert "of 4 images" in lines[1]


def test_images_are_given_by_hash_alone(annotator: Annotator) -> None:
    wide = httpx.get(f"{annotator.url}/images/{annotator.order[0]}.jpg")
    pixels = cv2.imdecode(np.frombuffer(wide.content, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    assert pixels.shape == (960, 1280, 3)
    assert wide.headers["cache-control"] == "no-store"
    small = httpx.get(f"{annotator.url}/images/{annotator.order[1]}.jpg")
    pixels = cv2.imdecode(np.frombuffer(small.content, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    assert pixels.shape == (600, 800, 3)
    for path in (
        f"/images/{'0' * 64}.jpg",
        "/images/..%2f..%2fmanifest.parquet",
        "/images/%2fetc%2fpasswd",
        "/manifest.parquet",
        f"/gradio_api/custom_component/{'0' * 64}/client/component/index.js",
        "/gradio_api/custom_component/x/client/..%2f..%2f/image_annotator.py",
    ):
        assert httpx.get(annotator.url + path).status_code == 404, path


def test_another_site_cannot_be_this_page(annotator: Annotator) -> None:
    answer = httpx.get(annotator.url, headers={"host": "evil.example"})
    assert answer.status_code == 400


def test_another_port_of_this_machine_reads_nothing(annotator: Annotator) -> None:
    for path in ("/", "/config"):
        answer = httpx.get(annotator.url + path, headers={"origin": "http://localhost:3000"})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_second_reviewer_is_refused(annotator: Annotator) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "skindx", "annotate", annotator.dataset, "--port", str(free_port())],
        env=guarded_environment(annotator.folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "error: another review or build is at work in" in done.stderr
    assert done.stderr.count("\n") == 1


@dataclass
class Seen:
    page: "Page"
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def reported(self, text: str) -> str:
        self.page.locator("#sx-message", has_text=text).wait_for()
        return self.page.inner_text("#sx-message")

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press the mouse at `start` and let it go at `end`, pixels of a small image's own."""
        box = self.page.locator("#sx-canvas canvas").bounding_box()
        assert box is not None
        times = shown_size(SMALL)[0] / SMALL[0]
        left = box["x"] + (box["width"] - times * SMALL[0]) / 2
        self.page.mouse.move(left + times * start[0], box["y"] + times * start[1])
        self.page.mouse.down()
        self.page.mouse.move(left + times * end[0], box["y"] + times * end[1], steps=4)
        self.page.mouse.up()


@pytest.fixture
def seen(browser: "Browser", annotator: Annotator) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1500, "height": 1200})
    seen = Seen(context.new_page())
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    seen.page.goto(annotator.url)
    seen.reported("Image")
    yield seen
    context.close()
    assert seen.errors == []
    assert {host for host in seen.hosts if host} == {urlsplit(annotator.url).netloc}


@pytest.mark.browser
def test_a_reviewer_walks_through_by_keyboard(annotator: Annotator, seen: Seen) -> None:
    page = seen.page
    first = "Image 1 of 4 (Nevus (mole)): not annotated yet, proposed with confidence 0.20"
    assert first in seen.reported("0 of 4 looked at")
    page.keyboard.press("u")
    seen.reported("Nothing was saved since the page was opened")
    # The proposal as it is: exactly what the model said, in pixels of the large image.
    page.keyboard.press("s")
    seen.reported("Saved: 1 box. Image 2 of 4")
    assert [(b.x1, b.y1, b.x2, b.y2) for b in annotator.boxes(0) or ()] == [
        (100.5, 50.25, 300.125, 200.0)
    ]
    # Move the second image's proposal by 10 and 20 pixels; it is small, and shown larger.
    page.get_by_label("Drag boxes").click()
    seen.drag((200, 120), (210, 140))
    page.keyboard.press("s")
    seen.reported("Saved: 1 box. Image 3 of 4")
    (moved,) = annotator.boxes(1) or ()
    corners = (moved.x1, moved.y1, moved.x2, moved.y2)
    assert corners == pytest.approx((110.5, 70.25, 310.125, 220.0), abs=0.5)
    assert moved.x2 - moved.x1 == pytest.approx(199.625, abs=1e-3)
    # Draw one where nothing was proposed.
    page.get_by_label("Create box").click()
    seen.drag((40, 30), (140, 90))
    page.keyboard.press("s")
    seen.reported("Saved: 1 box. Image 4 of 4")
    (drawn,) = annotator.boxes(2) or ()
    assert (drawn.label, drawn.drawn_by) == ("lesion", "Dr. <Mole>")
    assert (drawn.x1, drawn.y1, drawn.x2, drawn.y2) == pytest.approx((40, 30, 140, 90), abs=0.5)
    # Nothing in the fourth; then back, and undo gives it back to nobody.
    page.keyboard.press("s")
    seen.reported("Saved: looked at, no lesion. Image 1 of 4")
    assert annotator.boxes(3) == ()
    page.keyboard.press("k")
    seen.reported("Image 2 of 4")
    page.keyboard.press("b")
    seen.reported("Image 1 of 4")
    page.keyboard.press("u")
    seen.reported("Undone: this image has the boxes that it had before. Image 4 of 4")
    assert annotator.boxes(3) is None
    assert len(read_annotations(annotator.dataset)) == 3


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (768, 1024), (1280, 800)])
def test_everything_to_work_with_is_in_the_window(
    browser: "Browser", annotator: Annotator, width: int, height: int
) -> None:
    touch = width < 1000
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=touch, is_mobile=touch
    )
    page = context.new_page()
    page.goto(annotator.url)
    page.locator("#sx-message p").wait_for()
    page.locator("#sx-canvas canvas").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".sx-keys").is_visible() != touch
    assert page.locator(".sx-touch").is_visible() == touch
    after = "e => getComputedStyle(e, '::after').content"
    assert ("(S)" in page.locator("#sx-save").evaluate(after)) != touch
    for label, word in {"Create box": "Draw", "Drag boxes": "Move"}.items():
        assert word in page.get_by_label(label).evaluate(after)
    tools = page.locator("#sx-canvas .canvas-control button:visible").all()
    buttons = page.locator("#sx-buttons button").all()
    assert len(tools) >= 2  # two more where a box is chosen
    assert len(buttons) == 4
    for control in (*tools, *buttons, page.locator("#sx-canvas canvas")):
        place = control.bounding_box()
        assert place is not None
        assert place["x"] >= 0
        assert place["x"] + place["width"] <= width
        assert place["y"] + place["height"] <= height
    context.close()


@pytest.mark.browser
def test_no_serious_barrier_for_anybody(
    seen: Seen, axe: "Callable[[Page], list[dict[str, Any]]]"
) -> None:
    assert axe(seen.page) == []
