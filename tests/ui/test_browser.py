"""The page as a person sees it, in a real chromium."""

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from PIL import Image
from served import Served
from skin_photo import skin_photo

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
FILE = "#sx-upload input[type=file]"

# The least contrast of any of our own texts with the ground behind it (WCAG 2.1, 1.4.3).
CONTRAST = """() => {
  const light = (c) => {
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$/.test(c) && c !== 'transparent') return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('[class^="sx-"], [class^="sx-"] *')]
    .filter((e) => !(e instanceof SVGElement))
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return texts.map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.className || e.tagName];
  }).sort((x, y) => x[0] - y[0]);
}"""


@dataclass
class Seen:
    """An open page, and what went on behind it."""

    page: "Page"
    errors: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: `apt install chromium` lets these tests run")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def seen(browser: "Browser", served: Served, request: pytest.FixtureRequest) -> Iterator[Seen]:
    options = {"viewport": {"width": 1280, "height": 800}} | getattr(request, "param", {})
    context = browser.new_context(**options)
    seen = Seen(context.new_page())
    seen.page.on(
        "console",
        lambda message: seen.errors.append(message.text) if message.type == "error" else None,
    )
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("request", lambda sent: seen.hosts.add(urlsplit(sent.url).netloc))
    seen.page.goto(served.url)
    seen.page.wait_for_selector(FILE, state="attached")
    yield seen
    assert seen.errors == []
    assert seen.hosts <= {urlsplit(served.url).netloc, ""}  # "": data: and blob:
    context.close()


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("photo") / "photo.jpg"
    file.write_bytes(skin_photo(1600, 1200))
    return file


def diagnose(page: "Page", photo: Path) -> None:
    page.set_input_files(FILE, photo)
    page.wait_for_selector(".sx-result")


def test_a_photo_becomes_a_ranked_answer(seen: Seen, served: Served, photo: Path) -> None:
    page = seen.page
    notice = page.locator(".sx-notice")
    assert "no medical device" in notice.inner_text()
    diagnose(page, photo)
    box = notice.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 800  # seen without scrolling
    assert page.evaluate("window.scrollY") == 0
    ranks = page.locator(".sx-rank")
    assert ranks.count() == 5
    shares = [float(text.strip("<> %")) for text in page.locator(".sx-percent").all_inner_texts()]
    assert shares == sorted(shares, reverse=True)
    widths = [bar.bounding_box() for bar in page.locator(".sx-bar").all()]
    fills = [bar.bounding_box() for bar in page.locator(".sx-bar i").all()]
    for share, whole, fill in zip(shares, widths, fills, strict=True):
        assert whole is not None
        assert fill is not None
        assert fill["width"] / whole["width"] == pytest.approx(share / 100, abs=0.02)
    advice = page.locator(".sx-advice").bounding_box()
    first = ranks.first.bounding_box()
    assert advice is not None
    assert first is not None
    assert advice["y"] < first["y"]
    assert "not clinically reviewed" in page.locator(".sx-basis").inner_text()
    assert served.uploads == []
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0


def test_a_closed_tab_is_forgotten(browser: "Browser", served: Served, photo: Path) -> None:
    before = served.remembered()
    page = browser.new_page()
    page.goto(served.url)
    page.wait_for_selector(FILE, state="attached")
    diagnose(page, photo)
    (tab,) = served.remembered() - before
    page.close()
    deadline = time.monotonic() + 60
    while tab in served.remembered():
        assert time.monotonic() < deadline, "the picture is still in the server's memory"
        time.sleep(0.5)


def test_lesions_are_outlined_not_covered(seen: Seen, photo: Path) -> None:
    diagnose(seen.page, photo)
    outlines = seen.page.locator(".sx-box .sx-over")
    assert outlines.count() >= 1
    assert outlines.first.evaluate("e => getComputedStyle(e).fill") == "none"
    shown = seen.page.locator(".sx-frame img")
    assert shown.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [1280, 960]
    picture, frame = shown.bounding_box(), seen.page.locator(".sx-frame svg").bounding_box()
    assert picture is not None
    assert picture == pytest.approx(frame, abs=1)
    assert picture["width"] / picture["height"] == pytest.approx(4 / 3, abs=0.01)


def test_the_keyboard_is_enough(seen: Seen, photo: Path) -> None:
    page = seen.page
    page.keyboard.press("Tab")
    with page.expect_file_chooser() as chooser:
        for _ in range(10):
            if page.evaluate("document.activeElement.matches('#sx-upload button')"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    chooser.value.set_files(photo)
    page.wait_for_selector(".sx-result")
    page.locator("#sx-another").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".sx-waiting")
    page.wait_for_selector(FILE, state="attached")
    assert page.locator(".sx-figure").count() == 0
    diagnose(page, photo)


def truncated(photo: Path) -> bytes:
    data = photo.read_bytes()
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("kind", "said"), [("text", "The file is no picture"), ("half", "damaged or cut short")]
)
def test_a_bad_upload_gets_a_sentence_and_the_page_goes_on(
    seen: Seen, served: Served, photo: Path, tmp_path: Path, kind: str, said: str
) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"just text" if kind == "text" else truncated(photo))
    seen.page.set_input_files(FILE, bad)
    problem = seen.page.wait_for_selector(".sx-problem")
    assert problem is not None
    assert said in problem.inner_text()
    assert "Traceback" not in seen.page.content()
    assert served.uploads == []
    assert "Traceback" not in served.stderr()
    diagnose(seen.page, photo)


@pytest.mark.parametrize(
    "seen",
    [{"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}],
    indirect=True,
    ids=["phone"],
)
def test_a_phone_shows_the_next_step_first_and_nothing_sticks_out(seen: Seen, photo: Path) -> None:
    page = seen.page
    diagnose(page, photo)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    advice = page.locator(".sx-advice").bounding_box()
    picture = page.locator(".sx-frame").bounding_box()
    assert advice is not None
    assert picture is not None
    assert advice["y"] < picture["y"]
    assert advice["y"] + advice["height"] < 844


@pytest.mark.parametrize(
    "seen", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True
)
def test_every_text_stands_out_from_its_ground(seen: Seen, photo: Path) -> None:
    for _ in range(2):
        measured = seen.page.evaluate(CONTRAST)
        assert len(measured) > 5
        assert measured[0][0] >= 4.5, measured[0]
        if not seen.page.locator(".sx-result").count():
            diagnose(seen.page, photo)


def test_a_picture_that_lies_on_its_side_is_shown_upright(
    seen: Seen, photo: Path, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[274] = 6
    lying = io.BytesIO()
    Image.open(photo).save(lying, "JPEG", exif=exif)
    file = tmp_path / "lying.jpg"
    file.write_bytes(lying.getvalue())
    diagnose(seen.page, file)
    size = seen.page.locator(".sx-frame img").evaluate("e => [e.naturalWidth, e.naturalHeight]")
    assert size == [960, 1280]
