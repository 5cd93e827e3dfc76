"""The whole way in a real chromium: a real bundle, workers, the guard, the page."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from proxies import proxied
from served import Served
from windows import Seen

from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.ui.uploads import ROUTE

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


def skin(width: int = 640, height: int = 480) -> "Image.Image":
    """Return a photo that looks like skin with a spot."""
    rows, columns = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 1))
    spot = ((rows - height / 2) ** 2 + (columns - width / 2) ** 2 < (height / 6) ** 2)[..., None]
    shade = np.where(spot, [110, 70, 60], [205, 160, 135]) + noise
    return Image.fromarray(shade.clip(0, 255).astype(np.uint8))


def ask(page: "Page", photo: Path) -> None:
    page.set_input_files("#sx-file", photo)
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow, .sx-refused, .sx-problem")


def test_a_lying_photo_is_shown_upright_reported_and_not_remembered(
    opened: Callable[..., Seen], served: Served, tmp_path: Path
) -> None:
    before = served.remembered()
    exif = Image.Exif()
    exif[274] = 6
    file = tmp_path / "lying.jpg"
    skin(1600, 1200).save(file, "JPEG", exif=exif, quality=92)
    page = opened(url=served.url).page
    ask(page, file)
    assert page.locator(".sx-follow").count() == 1, page.locator(".sx-refusal").all_inner_texts()
    shown = page.locator(".sx-photo-shown")
    assert shown.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [960, 1280]
    with page.expect_download() as download:
        page.click(".sx-pdf")
    report = Path(download.value.path()).read_bytes()
    assert report.startswith(b"%PDF")
    assert report.rstrip().endswith(b"%%EOF")
    assert served.uploads == []
    assert served.remembered() == before  # the answer is in the browser alone


def test_a_bad_file_is_refused_beside_its_image_and_the_page_goes_on(
    opened: Callable[..., Seen], served: Served, tmp_path: Path
) -> None:
    page = opened(url=served.url).page
    whole = io.BytesIO()
    skin().save(whole, "JPEG", quality=92)
    for name, data in (
        ("text.jpg", b"just text"),
        ("half.jpg", whole.getvalue()[: whole.tell() // 2]),
    ):
        (tmp_path / name).write_bytes(data)
        ask(page, tmp_path / name)
        refused = page.locator(".sx-photo .sx-refusal").inner_text()
        assert len(refused) > 20
        assert "Traceback" not in page.content()
        assert page.locator(".sx-scan").count() == 0  # there is no detector, so no scan
        page.click("[aria-label='Remove photo 1']")
    assert served.uploads == []
    (tmp_path / "good.jpg").write_bytes(whole.getvalue())
    ask(page, tmp_path / "good.jpg")
    assert page.locator(".sx-result").count() == 1


def test_a_full_quota_is_shown_with_its_reason_and_when_to_try_again(
    opened: Callable[..., Seen], served: Served, tmp_path: Path
) -> None:
    """The browser and this client share an address, so its uploads use up the browser's quota."""
    file = tmp_path / "photo.jpg"
    skin().save(file, "JPEG", quality=92)
    seen = opened(url=served.url)
    page = seen.page
    with served.client() as client:
        for size in (MAX_BYTES, 1 << 20, 1 << 16):
            for _ in range(20):
                answer = client.post(ROUTE, files={"files": ("photo.jpg", bytes(size))})
                if answer.status_code != 200:
                    break
    assert answer.status_code == 429
    try:
        page.set_input_files("#sx-file", file)
        page.click(".sx-ask")
        page.wait_for_selector(".sx-photo .sx-refusal")
        shown = page.locator(".sx-photo .sx-refusal").inner_text()
        assert shown == answer.json()["error"]
        assert shown.endswith(f"Try again in {answer.headers['retry-after']} seconds.")
    finally:
        for path in served.uploads:  # as a diagnosis does
            path.unlink()
    (failed,) = seen.errors  # the browser's own line about the answer 429
    assert "429" in failed
    seen.errors.clear()
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")


@pytest.mark.parametrize("form", ["heic", "dcm"])
def test_a_photo_that_no_browser_shows_is_named_before_the_answer_and_shown_with_it(
    opened: Callable[..., Seen], served: Served, tmp_path: Path, form: str
) -> None:
    file = tmp_path / f"IMG_0001.{form}"
    if form == "heic":
        pytest.importorskip("pillow_heif").from_pillow(skin()).save(file, quality=90)
    else:
        pytest.importorskip("pydicom")
        from dicom_files import dicom

        file.write_bytes(dicom(skin().tobytes(), 480, 640))
    page = opened(url=served.url).page
    page.set_input_files("#sx-file", file)
    page.wait_for_selector(".sx-no-preview")  # chromium cannot show it
    assert file.name in page.locator(".sx-photo").inner_text()
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow")
    mini = page.locator(".sx-minis img")
    assert mini.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [240, 180]
    page.click(".sx-change")
    assert page.locator(".sx-photo img").evaluate("e => e.naturalWidth") == 240
    assert page.locator(".sx-no-preview").count() == 0


@pytest.fixture(params=["nginx", pytest.param("caddy", marks=pytest.mark.long)])
def proxy(request: pytest.FixtureRequest, served: Served, tmp_path: Path) -> Iterator[str]:
    with proxied(request.param, served.port, tmp_path) as url:
        yield url


def test_a_photo_is_answered_below_a_folder(
    proxy: str, opened: Callable[..., Seen], tmp_path: Path
) -> None:
    skin().save(tmp_path / "photo.jpg", "JPEG", quality=92)
    seen = opened(url=f"{proxy}/skin/")
    page, wrong = seen.page, []
    page.on("response", lambda got: wrong.append(got.url) if got.status >= 400 else None)
    page.set_input_files("#sx-file", tmp_path / "photo.jpg")
    page.click(".sx-ask")
    page.wait_for_selector(".sx-follow, .sx-problem, .sx-refused")
    assert wrong == []
    seen.errors.clear()  # a browser asks the host for /favicon.ico, which is not ours here
