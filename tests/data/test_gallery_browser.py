"""The gallery as a person sees it: from the disk, without network, with the keyboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gallery_fakes import gallery_dataset

from skindx.data.publish.gallery_pages import write_gallery

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")

# The least contrast of any text with the ground behind it (WCAG 2.1, 1.4.3).
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
  const texts = [...document.body.querySelectorAll('*')]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  return texts.map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)];
  }).sort((x, y) => x[0] - y[0])[0];
}"""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: `apt install chromium` lets these tests run")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> str:
    dataset = gallery_dataset(tmp_path_factory.mktemp("gallery") / "data", kept=20)
    return write_gallery(dataset, dataset / "gallery").parent.as_uri()


def loaded(page: "Page") -> bool:
    """Tell whether all images are there; scrolls, because they load when they are seen."""
    for image in page.locator("img").all():
        image.scroll_into_view_if_needed()
    page.wait_for_function("[...document.images].every((i) => i.complete)")
    return bool(page.evaluate("[...document.images].every((i) => i.naturalWidth > 0)"))


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)], ids=str
)
def test_it_opens_from_the_disk_without_network(
    browser: "Browser", gallery: str, scheme: str, width: int
) -> None:
    context = browser.new_context(
        offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    page = context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in ("index", "kept-0-0-1", "dropped-0-0-1"):
        page.goto(f"{gallery}/{name}.html")
        assert loaded(page), name
        assert "owned" not in page.title()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        contrast, where = page.evaluate(CONTRAST)
        assert contrast >= 4.5, (name, where)
    assert problems == []
    assert {url for url in asked if not url.startswith(gallery)} == set()
    context.close()


def test_the_keyboard_reaches_the_filters(browser: "Browser", gallery: str) -> None:
    page = browser.new_page()
    page.goto(f"{gallery}/index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the images"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").startswith("near-duplicate"):
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"
    page.keyboard.press("Enter")
    page.wait_for_url("**/dropped-0-*.html")
    assert page.locator(".tile").count() == 1
    assert page.locator(".tile img").count() == 2
    assert page.locator("nav[aria-label=Reason] [aria-current]").inner_text().startswith("near")
    page.close()
