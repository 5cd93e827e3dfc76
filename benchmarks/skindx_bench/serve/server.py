"""`skindx serve` as a process, its bundle of random weights, and a real chromium before it."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from skindx.core.errors import JobError, UserError
from skindx.core.machine import go_offline, python_command, require_extra
from skindx.models.bundle.bundle import Bundle, DetectorParts, pack
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.detector import DetectorSpec
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.taxonomy import load_taxonomy
from skindx_bench.harness.conditions import ProcessTree

if TYPE_CHECKING:
    from playwright.sync_api import Page


QUALITY = 90
_THUMBNAIL = 160


def random_bundle(
    path: Path, models: Sequence[str], *, side: int, detector_side: int, gallery: int
) -> Bundle:
    """Pack an untrained ensemble with a detector and a gallery of `gallery` images."""
    torch.manual_seed(0)
    taxonomy = load_taxonomy("isic9")
    members, width = [], 0
    for model in models:
        settings = ClassifierSettings(model=model, preprocess=Preprocess(size=side))
        classifier = build_classifier(settings, len(taxonomy.classes)).eval()
        with torch.inference_mode():
            square = torch.zeros((1, side, side, 3), dtype=torch.uint8)
            width += classifier.forward_pooled(classifier.forward_features(square)).shape[1]
        members.append((MemberSpec(name=model, classifier=settings), classifier.net.state_dict()))
    return pack(
        path,
        "bench-serve",
        taxonomy,
        members,
        detector=_detector(detector_side),
        gallery=_gallery(gallery, width, taxonomy.keys),
    )


def photo_jpeg(width: int, height: int, seed: int) -> bytes:
    """Return a photo of a lesion on skin, with a camera's grain; another one for each seed."""
    import cv2
    import simplejpeg

    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
    centre_x, centre_y = rng.uniform(0.4, 0.6, 2) * (width, height)
    distance = np.hypot(columns - centre_x, rows - centre_y) / (0.18 * min(width, height))
    coarse = rng.normal(0, 1, (24, 32, 1)).astype(np.float32)
    shade = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)[..., None]
    lesion = 1 / (1 + np.exp(12 * (distance[..., None] + 0.12 * shade - 1)))
    skin = np.array([206, 160, 136], np.float32) + 7 * shade
    spot = np.array([104, 66, 54], np.float32) + 16 * shade
    # A gate recognises a sharp photo by the lines of the skin, also at a fraction of its size.
    fine = rng.normal(0, 12, (max(2, height // 8), max(2, width // 8))).astype(np.float32)
    lines = cv2.resize(fine, (width, height), interpolation=cv2.INTER_LINEAR)[..., None]
    grain = lines + rng.standard_normal((height, width, 1), dtype=np.float32) * 4
    pixels = (skin + lesion * (spot - skin) + grain).clip(0, 255).astype(np.uint8)
    jpeg: bytes = simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")
    return jpeg


def _detector(side: int) -> DetectorParts:
    go_offline()
    from ultralytics import YOLO
    from ultralytics.nn.tasks import DetectionModel

    config = {**YOLO("yolo11n.yaml", task="detect").model.yaml, "nc": 1}
    # Untrained scores are tiny: with this threshold there is something to outline.
    spec = DetectorSpec(size=side, confidence=1e-5, overlap=0.1)
    return DetectorParts(spec, config, DetectionModel(config, nc=1, verbose=False).state_dict())


def _gallery(images: int, width: int, keys: Sequence[str]) -> EmbeddingIndex:
    rng = np.random.default_rng(0)
    embeddings_ND = rng.standard_normal((images, width), dtype=np.float32)
    embeddings_ND /= np.linalg.norm(embeddings_ND, axis=1, keepdims=True)
    small = [photo_jpeg(_THUMBNAIL, _THUMBNAIL, seed) for seed in range(32)]
    rows = [
        IndexRow(f"{n:064x}", keys[n % len(keys)], n, "CC0-1.0", "bench") for n in range(images)
    ]
    return EmbeddingIndex.from_rows(
        rows, embeddings_ND, [small[n % len(small)] for n in range(images)]
    )


@dataclass(frozen=True)
class Server(ProcessTree):
    """A running server."""

    url: str


@contextmanager
def running(bundle: Path, *arguments: str) -> Iterator[Server]:
    """Start `skindx serve BUNDLE` on a free port and wait for it; it is over at the end.

    Raises JobError when it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = python_command("-m", "skindx", "serve", str(bundle), "--port", str(port))
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if "skindx is at" not in process.stdout.readline():
                raise JobError("`skindx serve` did not start; see its error above")
            yield Server(process.pid, f"http://127.0.0.1:{port}")
        finally:
            process.send_signal(signal.SIGTERM)
            _wait(process)


def _wait(process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()


CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_WAIT_MS = 120_000
# The photo, its heat map and the similar cases are there and decoded, not only asked for.
_COMPLETE = """() => document.querySelector('.sx-follow')
  && [...document.querySelectorAll('#sx-right img, #sx-left img')]
       .every((image) => image.complete && image.naturalWidth)"""


@contextmanager
def opened(url: str) -> Iterator["Page"]:
    """Yield the page of a server in a browser. Raises UserError where there is none."""
    require_extra(
        "dev", "playwright", purpose="the bench of the page", otherwise=", or set page=false"
    )
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        raise UserError(f"{CHROMIUM} is not there; run `apt install chromium`, or set page=false.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("#sx-file", state="attached", timeout=_WAIT_MS)
        yield page
        browser.close()


def ask(page: "Page", photo: Path) -> tuple[float, float]:
    """Return the seconds from the click to the complete page, and to the PDF report from its click.

    The upload is among the first ones.
    """
    page.set_input_files("#sx-file", photo)
    page.wait_for_selector(".sx-photo", timeout=_WAIT_MS)
    start = time.perf_counter()
    page.click(".sx-ask")
    page.wait_for_function(_COMPLETE, timeout=_WAIT_MS)
    complete_s = time.perf_counter() - start
    start = time.perf_counter()
    with page.expect_download(timeout=_WAIT_MS) as report:
        page.click(".sx-pdf")
    report.value.path()  # waits until it is written
    report_s = time.perf_counter() - start
    page.click("[data-again]")
    page.wait_for_selector(".sx-follow", state="detached", timeout=_WAIT_MS)
    return complete_s, report_s
