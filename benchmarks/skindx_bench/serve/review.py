"""The review page before 10,000 images in a real chromium: first paint, decisions, scrolling.

Images are hard links to a few painted ones, so that a dataset of any size is made in seconds; the
server decodes each as another image. A decision is timed in the browser, from the key to the frame
in which the next image's row and title stand, and apart from it until the server has it on disk.
"""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import Field

from skindx.core.errors import JobError, UserError
from skindx.core.machine import free_port, python_command, require_extra
from skindx.core.settings_base import Settings
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, write_proposals
from skindx.data.decisions import Flag, Reason, write_flags
from skindx.data.labels import taxonomy_of
from skindx.data.layout import TAXONOMY
from skindx.data.manifest import Record, write_issues, write_manifest
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx_bench.harness.result import Figure, Result, median
from skindx_bench.serve.server import ARGUMENTS, CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SMALLEST = ("images=60", "rounds=2", "decisions=3", "painted=3")

_WATCH = """() => {
  window.taken = [];
  let pressed = 0;
  addEventListener('keydown', (event) => { pressed = event.timeStamp; }, true);
  new MutationObserver(() => {
    if (!pressed) return;
    const from = pressed;
    pressed = 0;
    requestAnimationFrame(() => setTimeout(() => window.taken.push(performance.now() - from)));
  }).observe(document.getElementById('title'), { childList: true, characterData: true });
}"""
_SCROLL = """async () => {
  const list = document.getElementById('list');
  const frames = [];
  let last = performance.now();
  for (let n = 0; n < 120; n += 1) {
    list.scrollTop = (list.scrollHeight / 120) * n;
    await new Promise((done) => requestAnimationFrame(done));
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""
_BEGIN = """localStorage.setItem('skindx-reviewer', 'the bench');
performance.setResourceTimingBufferSize(100000);"""
_POSTS = """() => performance.getEntriesByType('resource')
  .filter((one) => one.name.endsWith('/answer')).map((one) => one.duration)"""
_PAINT = """() => performance.getEntriesByName('first-contentful-paint')[0].startTime"""


class Config(Settings):
    """`images` with a flag each, of which every tenth has a proposed box too."""

    images: int = Field(10_000, ge=20)
    painted: int = Field(60, ge=2)
    rounds: int = Field(9, ge=2)
    """Times that the page is opened."""
    decisions: int = Field(60, ge=2)


def run(settings: Config) -> Result:
    """Serve the dataset as a process of its own and work on it by keyboard."""
    require_extra("dev", "playwright", purpose="the bench of the review page")
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        raise UserError(f"{CHROMIUM} is not there; run `apt install chromium`.")
    with TemporaryDirectory() as name, sync_playwright() as driver:
        dataset = Path(name) / "data"
        _write(dataset, settings)
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        try:
            with _served(dataset) as (url, started_s):
                figures = {"start_s": Figure(started_s, "s", 1, (started_s, started_s))}
                figures |= _measure(browser, url, settings)
        finally:
            browser.close()
    notes = (
        f"{settings.images:,} images of 600 x 450 pixels, each with a flag, one in ten with a "
        "proposed box; server and chromium share this machine.",
        "first_paint: first contentful paint of the opened address. usable: until the first "
        "image's facts stand and its key works. decision: from the key to the frame with the next "
        "image's title. on_disk: the request by which an answer is stored. box_on_disk: that of a "
        "box, which writes manifest and annotations anew. frame: of a list dragged from end to "
        "end in 120 steps.",
    )
    return Result("review", figures, notes=notes)


def _measure(browser: "Browser", url: str, settings: Config) -> dict[str, Figure]:
    paints, usable = [], []
    for _ in range(settings.rounds):
        page, seconds = _opened(browser, url)
        paints.append(page.evaluate(_PAINT) / 1000)
        usable.append(seconds)
        page.context.close()
    page, _ = _opened(browser, url)
    page.evaluate(_WATCH)
    decided = _press(page, ["k", "w", "r"], settings.decisions)
    posted = page.evaluate(_POSTS)
    frames = page.evaluate(_SCROLL)
    page.context.close()
    page, _ = _opened(browser, url)
    options = page.locator("#reason option").all_inner_texts()
    page.select_option("#reason", label=next(one for one in options if one.startswith("box")))
    page.locator("#boxes rect").first.wait_for()
    page.evaluate(_WATCH)
    _press(page, ["y"], min(settings.decisions, settings.images // 20))
    boxes = page.evaluate(_POSTS)
    page.context.close()
    return {
        "first_paint_s": median(paints, "s"),
        "usable_s": median(usable, "s"),
        "decision_ms": median(decided, "ms"),
        "decision_p95_ms": _high(decided),
        "on_disk_ms": median(posted, "ms"),
        "box_on_disk_ms": median(boxes, "ms"),
        "frame_ms": median(frames, "ms"),
        "frame_p95_ms": _high(frames),
    }


def _high(samples: list[float]) -> Figure:
    """Return the 95th percentile; its spread is from the 90th to the slowest."""
    ordered = sorted(samples)
    at = [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.9, 0.95, 1)]
    return Figure(at[1], "ms", len(ordered), (at[0], at[2]))


def _opened(browser: "Browser", url: str) -> "tuple[Page, float]":
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.add_init_script(_BEGIN)
    page = context.new_page()
    start = time.perf_counter()
    page.goto(url)
    page.locator("#facts dd").first.wait_for()
    return page, time.perf_counter() - start


def _press(page: "Page", keys: list[str], count: int) -> list[float]:
    """Decide `count` times, the next one when the last is on disk; return milliseconds."""
    for number in range(count):
        title = page.inner_text("#title")
        page.keyboard.press(keys[number % len(keys)])
        deadline = time.monotonic() + 30
        while page.inner_text("#title") == title or len(page.evaluate(_POSTS)) <= number:
            if time.monotonic() > deadline:
                raise JobError(f"the review page did not go on: {page.inner_text('#message')}")
    taken: list[float] = page.evaluate("() => window.taken")
    return taken


@contextmanager
def _served(dataset: Path) -> Iterator[tuple[str, float]]:
    command = python_command("-m", "skindx", "review", str(dataset), "--port", str(free_port()))
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line: Any = process.stdout.readline()
        match = re.search(r"http://\S+", line)
        try:
            if match is None:
                raise JobError(f"the review page did not start: {line}")
            yield match[0], time.perf_counter() - start
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _write(dataset: Path, settings: Config) -> None:
    base = [
        encode_jpeg(_enlarged(CLASSES[n % len(CLASSES)], n), 88) for n in range(settings.painted)
    ]
    store = dataset / "store"
    records, files = [], []
    for number in range(settings.images):
        sha256 = f"{number * 2_654_435_761 % 2**64:016x}{number:048x}"
        file = store / sha256[:2] / f"{sha256}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        if number < len(base):
            file.write_bytes(base[number])
            files.append(file)
        else:
            file.hardlink_to(files[number % len(files)])
        label = CLASSES[number % len(CLASSES)]
        path = file.relative_to(dataset).as_posix()
        records.append(
            Record(path, sha256, "0" * 16, 600, 450, label, sha256, "train", source="painted")
        )
    write_manifest(dataset, records)
    write_issues(dataset, [])
    taxonomy_of(CLASSES, "painted")[0].save(dataset / TAXONOMY)
    reasons: tuple[Reason, ...] = ("face", "label", "quality", "text")
    flags = [Flag(one.sha256, reasons[n % 4], n % 97 / 97, "") for n, one in enumerate(records)]
    write_flags(dataset, flags, reasons)
    box = Box(100, 100, 300, 300, "lesion", "bench", 0.5)
    write_proposals(dataset, [Annotation(one.sha256, "bench", "", (box,)) for one in records[::10]])


def _enlarged(label: str, number: int) -> Any:
    import cv2

    return cv2.resize(paint(label, number).pixels, (600, 450), interpolation=cv2.INTER_CUBIC)
