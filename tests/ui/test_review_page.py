"""The review page: who may ask it, and each decision by keyboard in a real chromium."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from copy_pairs import pair_of
from paint_images import encode, paint
from review_server import review_of
from windows import Windows

from skindx.data.answer_log import DECISIONS, AnswerLog, Question
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, write_proposals
from skindx.data.copies.verified import CopyRecord, Pair, write_copies
from skindx.data.decisions import Flag, write_flags
from skindx.data.layout import COPIES, store_bytes
from skindx.data.manifest import Issue, Record, read_manifest, write_issues, write_manifest
from skindx.taxonomy import SkinClass, Taxonomy

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@dataclass(frozen=True)
class Reviewed:
    url: str
    folder: Path
    dataset: Path
    shas: list[str]
    pair: Pair

    def verdict(self, question: Question, *sha256s: str) -> str:
        answer = AnswerLog(self.dataset).latest(question, sha256s)
        return f"{answer.verdict} {answer.label}".strip() if answer else ""


def _dataset(folder: Path) -> tuple[list[str], Pair]:
    """Write images: 0 and 4 with a face, 1 a doubtful label, 2 no skin, 3 a proposed box."""
    records = []
    for number in range(7):
        sha256, path = store_bytes(folder, encode(paint(number)), ".jpg")
        label, source = ("naevus", "melanoma")[number % 2], ("a", HOSTILE)[number % 2]
        about = {"source_url": HOSTILE, "creator": HOSTILE, "source": source}
        records.append(
            Record(path, sha256, "0" * 16, 120, 96, label, f"g{number}", "train", **about)
        )
    shas = [record.sha256 for record in records]
    write_manifest(folder, records)
    write_issues(folder, [Issue("u", "", "melanoma", "dead-link")])
    flags = [
        *(Flag(shas[0], "face", 0.9, HOSTILE), Flag(shas[4], "face", 0.8)),
        *(Flag(shas[1], "label", 0.9), Flag(shas[2], "not-skin", 0.9)),
    ]
    write_flags(folder, flags, ["face", "label", "not-skin"])
    box = Box(10.5, 20.25, 60.0, 70.0, "lesion", "m", 0.4)
    write_proposals(folder, [Annotation(shas[3], "m", "", (box,))])
    pair = pair_of(shas[5], shas[6])
    even = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
    write_copies(folder / COPIES, [CopyRecord(*pair, 0.7, 12, 0.8, 1.0, False, even)])
    Taxonomy(
        name="two",
        title="Two",
        classes=tuple(SkinClass(key=key, name=key.title()) for key in ("melanoma", "naevus")),
    ).save(folder / "taxonomy.yaml")
    return shas, pair


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reviewed]:
    folder = tmp_path_factory.mktemp("review")
    shas, pair = _dataset(folder / "data")
    with review_of(folder) as url:
        yield Reviewed(url, folder, folder / "data", shas, pair)


def test_only_who_knows_the_secret_is_answered(reviewed: Reviewed) -> None:
    parts = urlsplit(reviewed.url)
    root = f"http://{parts.netloc}"
    for path in ("/", "/state", "/x/state", f"{parts.path}x/../..%2fdata/manifest.parquet"):
        assert httpx.get(root + path).status_code == 404, path
    page = httpx.get(reviewed.url)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "<script>" not in page.text
    assert httpx.get(reviewed.url, headers={"host": "evil.example"}).status_code == 421
    for name in ("manifest.parquet", "thumb/99", "image/-1", "thumb/..%2f..%2fx", "item/x"):
        assert httpx.get(reviewed.url + name).status_code == 404, name
    thumb = httpx.get(reviewed.url + "thumb/0", timeout=60)
    assert (thumb.headers["content-type"], thumb.headers["cache-control"]) == (
        "image/jpeg",
        "no-store",
    )


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"at": 0, "by": "x", "revision": 0, "verdict": "remove"}, {"origin": "http://evil"}, 404),
        (b'{"at": 0, "by": "x", "revision": 0, "verdict": "remove"}', {}, 404),  # as a form sends
        ({"at": 0, "by": "x", "revision": 0, "verdict": "perhaps"}, {}, 400),
        ({"at": 0, "by": "x", "revision": 5, "verdict": "remove"}, {}, 409),
        ({"at": 99, "by": "x", "revision": 0, "verdict": "remove"}, {}, 400),
        ({"at": 0, "by": "", "revision": 0, "verdict": "remove"}, {}, 400),
        ({"at": 0, "by": "x", "revision": 0, "verdict": "remove", "path": "/etc"}, {}, 400),
        ({"at": 0, "by": "x", "revision": 0, "question": "image", "before": 3}, {}, 400),
        ([1], {}, 400),
    ],
)  # fmt: skip
def test_what_no_page_of_ours_sends_writes_nothing(
    reviewed: Reviewed, body: Any, headers: dict[str, str], status: int
) -> None:
    sent = {"content": body} if isinstance(body, bytes) else {"json": body}
    answer = httpx.post(reviewed.url + "answer", headers=headers, **sent)
    assert answer.status_code == status, answer.text
    assert reviewed.verdict("image", reviewed.shas[0]) == ""


def test_a_body_that_is_compressed_is_refused_as_such(reviewed: Reviewed) -> None:
    body = {"at": 0, "by": "x", "revision": 0, "verdict": "remove"}
    for coding in ("gzip", "identity, br"):
        headers = {"content-encoding": coding}
        answer = httpx.post(reviewed.url + "answer", headers=headers, json=body)
        assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
        assert "compressed" in answer.text
    assert reviewed.verdict("image", reviewed.shas[0]) == ""


@pytest.fixture
def open_page(
    browser: "Browser", windows: Windows, reviewed: Reviewed
) -> "Iterator[Callable[..., Page]]":
    pages: list[Page] = []
    errors, hosts = list[str](), set[str]()

    def open_as(name: str) -> "Page":
        page = windows.open(reviewed.url, "another" if pages else "")
        pages.append(page)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.goto(reviewed.url)
        page.wait_for_selector("#name-dialog[open]")
        page.fill("#by", name)
        page.keyboard.press("Enter")
        page.locator("#facts dd").first.wait_for()
        return page

    yield open_as
    for page in pages:
        page.evaluate("localStorage.clear()")  # the name
    windows.close()
    assert [error for error in errors if "409" not in error] == []
    assert hosts - {""} == {urlsplit(reviewed.url).netloc}


def _says(page: "Page", text: str, where: str = "#message") -> None:
    page.locator(where, has_text=text).wait_for()


def _choose(page: "Page", reason: str, status: str = "open") -> None:
    page.select_option("#status", status)
    options = page.locator("#reason option").all_inner_texts()
    page.select_option("#reason", label=next(one for one in options if one.startswith(reason)))
    page.locator("#facts dd").first.wait_for()


def _written(read: Callable[[], object], expected: object) -> None:
    deadline = time.monotonic() + 20
    while read() != expected:
        assert time.monotonic() < deadline, (read(), expected)
        time.sleep(0.02)


@pytest.mark.browser
def test_every_decision_by_keyboard(reviewed: Reviewed, open_page: "Callable[..., Page]") -> None:
    page, shas = open_page("Dr. <Mole>"), reviewed.shas
    _says(page, "0 of 6 answered", "#done")
    _says(page, "Image 1 of 6: Naevus – open: face", "#title")
    assert page.title() == "Review data"
    page.keyboard.press("?")
    _says(page, "Box wrong", "#keys")
    page.keyboard.press("Escape")
    page.locator("#help-dialog").wait_for(state="hidden")
    for key, verdict in (("k", "keep"), ("w", "withhold"), ("r", "remove")):
        page.keyboard.press(key)
        _says(page, "Image 2 of 6", "#title")
        _written(lambda: reviewed.verdict("image", shas[0]), verdict)
        page.keyboard.press("ArrowLeft")
        _says(page, f"{verdict}, by Dr. <Mole>", "#given")
    page.keyboard.press("u")
    _says(page, "Undone: remove.")
    assert reviewed.verdict("image", shas[0]) == "withhold"
    page.keyboard.press("Shift+U")
    _says(page, "Again: remove.")
    _written(lambda: reviewed.verdict("image", shas[0]), "remove")
    for _ in range(3):
        page.keyboard.press("Control+z")
    _says(page, "Undone: keep.")
    assert reviewed.verdict("image", shas[0]) == ""
    _choose(page, "doubtful")
    page.keyboard.press("l")
    page.keyboard.type("naev")
    page.keyboard.press("Enter")
    _written(lambda: reviewed.verdict("label", shas[1]), "relabel naevus")
    _choose(page, "no skin")
    page.keyboard.press("i")
    _written(lambda: reviewed.verdict("skin", shas[2]), "skin")
    _choose(page, "no skin", "all")
    page.keyboard.press("o")
    _written(lambda: reviewed.verdict("skin", shas[2]), "not skin")
    _choose(page, "possible", "all")
    page.locator("#image").wait_for()  # hidden until it is there
    page.keyboard.press("s")
    _written(lambda: reviewed.verdict("copy", *reviewed.pair), "same")
    page.keyboard.press("d")
    _written(lambda: reviewed.verdict("copy", *reviewed.pair), "different")
    page.keyboard.press("c")
    page.keyboard.type("=1+1 a year apart")
    page.keyboard.press("Enter")
    _written(lambda: reviewed.verdict("note", *reviewed.pair), "note")
    note = AnswerLog(reviewed.dataset).latest("note", reviewed.pair)
    assert note is not None
    assert note.note == "'=1+1 a year apart"
    # What is answered stays after a reload, and so does what can be undone.
    page.reload()
    page.locator("#facts dd").first.wait_for()
    _choose(page, "possible", "answered")
    _says(page, "different, by Dr. <Mole>", "#given")
    page.keyboard.press("u")
    _says(page, "Undone: note.")
    page.keyboard.press("u")
    _says(page, "Undone: different.")
    assert reviewed.verdict("copy", *reviewed.pair) == "same"


@pytest.mark.browser
def test_keys_are_faster_than_replies(reviewed: Reviewed, open_page: "Callable[..., Page]") -> None:
    """Answers and undos that come before the reply to the one before them count all the same."""
    page, sha256 = open_page("me"), reviewed.shas[0]
    page.evaluate(
        "() => { const quick = fetch; window.fetch = (...all) => new Promise("
        "(go) => { setTimeout(() => go(quick(...all)), 150); }); }"
    )
    _choose(page, "face", "all")
    for key in "kwr":
        page.keyboard.press(key)
        page.keyboard.press("ArrowLeft")
    for _ in range(3):
        page.keyboard.press("Control+z")
    _says(page, "Undone: keep.")
    _written(lambda: reviewed.verdict("image", sha256), "")
    page.keyboard.press("Shift+U")
    page.keyboard.press("Control+z")
    page.keyboard.press("k")
    _written(lambda: reviewed.verdict("image", sha256), "keep")
    assert page.locator("#message.alert").count() == 0


@pytest.mark.browser
def test_boxes_are_right_wrong_or_drawn_anew(
    reviewed: Reviewed, open_page: "Callable[..., Page]"
) -> None:
    page, sha256 = open_page("me"), reviewed.shas[3]

    def stored() -> list[tuple[float, ...]] | None:
        (record,) = (one for one in read_manifest(reviewed.dataset) if one.sha256 == sha256)
        boxes = record.boxes
        return None if boxes is None else [(b.x1, b.y1, b.x2, b.y2) for b in boxes]

    _choose(page, "box", "all")
    page.keyboard.press("y")  # exactly what the model said
    _written(stored, [(10.5, 20.25, 60.0, 70.0)])
    page.keyboard.press("n")
    _written(stored, None)
    page.keyboard.press("u")
    _says(page, "Undone: box wrong.")
    assert stored() == [(10.5, 20.25, 60.0, 70.0)]
    page.wait_for_selector("#boxes rect")
    page.keyboard.press("e")
    page.locator("#draw").wait_for()
    place = page.locator("#boxes").bounding_box()
    assert place is not None
    scale = place["width"] / 120

    def drag(x1: float, y1: float, x2: float, y2: float) -> None:
        page.mouse.move(place["x"] + scale * x1, place["y"] + scale * y1)
        page.mouse.down()
        page.mouse.move(place["x"] + scale * x2, place["y"] + scale * y2, steps=4)
        page.mouse.up()

    drag(30, 40, 40, 45)  # the box as a whole
    drag(20.5, 25.25, 15.5, 15.25)  # its corner
    drag(80, 10, 110, 30)  # a new one
    page.keyboard.press("Enter")
    _written(lambda: len(stored() or ()), 2)
    moved, new = stored() or ()
    assert moved == pytest.approx((15.5, 15.25, 70.0, 75.0), abs=0.5)
    assert new == pytest.approx((80, 10, 110, 30), abs=0.5)
    page.keyboard.press("e")
    page.locator("#draw").wait_for()
    page.keyboard.press("Delete")
    page.keyboard.press("Delete")
    page.keyboard.press("Enter")
    _written(stored, [])


@pytest.mark.browser
def test_two_reviewers_see_each_other_and_nothing_is_overwritten(
    reviewed: Reviewed, open_page: "Callable[..., Page]"
) -> None:
    (reviewed.dataset / DECISIONS).unlink(missing_ok=True)
    ours, theirs = open_page("Dr. A"), open_page("Dr. B")
    for page in (ours, theirs):
        _choose(page, "face")
    theirs.keyboard.press("w")
    _written(lambda: reviewed.verdict("image", reviewed.shas[0]), "withhold")
    ours.keyboard.press("k")  # before the page asked what is new
    _says(ours, "Dr. B has answered 'withhold' meanwhile; nothing was changed.")
    _says(ours, "withhold, by Dr. B", "#given")
    assert reviewed.verdict("image", reviewed.shas[0]) == "withhold"
    theirs.keyboard.press("w")
    _says(ours, "2 of 2 answered", "#done")


@pytest.mark.browser
def test_nothing_sticks_out_and_no_serious_barrier(open_page: "Callable[..., Page]") -> None:
    engine = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page("me")
    page.evaluate(engine.axe_script)
    for width, scheme in ((1280, "light"), (390, "dark")):
        page.set_viewport_size({"width": width, "height": 844})
        page.emulate_media(color_scheme=scheme)
        for key, where in (("", ":root"), ("?", "#help-dialog"), ("l", "#class-dialog")):
            if key:
                page.keyboard.press(key)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            ran = "async (at) => (await axe.run(at, { resultTypes: ['violations'] })).violations"
            assert [one["id"] for one in page.evaluate(ran, where)] == [], (width, key)
            page.keyboard.press("Escape")
