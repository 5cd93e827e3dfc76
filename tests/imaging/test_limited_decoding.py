"""Images of a dataset, which may be anybody's, are decoded with limits of time and memory."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_watch import descendants, on_each_reader
from hostile_images import chunk_bomb, memory_bomb, torn_in_the_middle
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.boxes.box_formats import read_masks
from skindx.data.layout import store_bytes
from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_image, write_manifest
from skindx.evaluation import evaluate
from skindx.imaging import sandboxed_images
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.sandboxed_images import LIMITS, decode_limited, lasting_decoding
from skindx.review import privacy_audit
from skindx.ui.review import _ReviewApp
from skindx.workers import sandbox
from skindx.workers.sandbox import Failure, LastingProcess
from skindx.workers.worker_process import SandboxLimits

SHORT = SandboxLimits(timeout_s=1, memory_mb=800)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_images, "LIMITS", SHORT)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_process_of_its_own_decodes_as_this_one_does(kind: str) -> None:
    for number, at_least in enumerate((None, (40, 30), None)):
        data = encode(paint(number, 200 + number, 300 - 90 * number), kind)
        here, there = (decoder(data, at_least=at_least) for decoder in (decode, decode_limited))
        assert np.array_equal(here, there)
    for broken in (torn_in_the_middle(), b"no image", data[:300]):
        said = []
        for decoder in (decode, decode_limited):
            with pytest.raises(DamagedImage) as damage:
                decoder(broken)
            said.append((str(damage.value), damage.value.reason))
        assert said[0] == said[1]


def test_threads_get_each_their_image_and_processes_last() -> None:
    datas = [encode(paint(number, 64, 64 + number)) for number in range(40)]
    pixels: dict[int, np.ndarray] = {}

    def work(first: int) -> None:
        for at in range(first, 40, 3):
            pixels[at] = decode_limited(datas[at])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(pixels[at], decode(datas[at])) for at in range(40))
    before = set(descendants(os.getpid()))
    decode_limited(datas[0])
    assert set(descendants(os.getpid())) == before


def test_one_that_was_interrupted_answers_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (encode(paint(number, 64, 64 + number)) for number in (1, 2))
    receive = sandbox._receive

    def interrupted(process: sandbox.Forked) -> object:
        monkeypatch.setattr(sandbox, "_receive", receive)
        raise KeyboardInterrupt

    decode_limited(first)
    monkeypatch.setattr(sandbox, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decode_limited(first)
    assert np.array_equal(decode_limited(second), decode(second))


def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SandboxLimits(timeout_s=15, memory_mb=100)
    monkeypatch.setattr(sandboxed_images, "LIMITS", limits)
    decode_limited(encode(paint(1)))
    before = set(descendants(os.getpid()))
    with pytest.raises(DamagedImage) as damage:
        decode_limited(memory_bomb())
    assert damage.value.reason in ("decode-memory", "decode-crash")
    # Nothing is left of it in memory: another process reads the next image.
    deadline = time.monotonic() + 30
    while not before - set(descendants(os.getpid())):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert decode_limited(encode(paint(1))).ndim == 3


@pytest.mark.usefixtures("short")
def test_what_took_too_long_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_images, "_fatal", {})
    with pytest.raises(DamagedImage, match="took longer than 1 s"):
        decode_limited(chunk_bomb())
    monkeypatch.setattr(sandboxed_images, "_LastingDecoder", None)
    monkeypatch.setattr(sandboxed_images, "_idle", [])
    with pytest.raises(DamagedImage, match="has already crashed its decoder"):
        decode_limited(chunk_bomb())


DOORS: dict[str, Callable[[Path, Record], object]] = {
    "any reader": read_image,
    "audit": lambda dataset, record: privacy_audit._detect(dataset / record.path),
    "predictions": lambda dataset, record: Files(dataset, [record], limited=True).image(0),
}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("door", DOORS)
def test_an_image_of_a_dataset_has_a_limit_of_time(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(privacy_audit, "_detector", object())
    sha256, path = store_bytes(tmp_path, chunk_bomb(), ".png")
    record = Record(path, sha256, "0" * 16, 64, 64, "naevus", "g", "train")
    with pytest.raises(UserError, match=rf"{sha256}.* cannot be read .*its? .*decoder"):
        DOORS[door](tmp_path, record)


@pytest.mark.usefixtures("short")
def test_an_evaluation_has_a_limit_of_time(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256, path = store_bytes(tmp_path, chunk_bomb(), ".png")
    write_manifest(tmp_path, [Record(path, sha256, "0" * 16, 64, 64, "naevus", "g", "test")])

    def read(predictor: object, records: list[Record], decode: evaluate.Decode, *_: Any, **__: Any):
        return evaluate._read(tmp_path / records[0].path, decode)

    monkeypatch.setattr(evaluate, "evaluate_served", read)
    with pytest.raises(UserError, match=rf"{sha256}.* cannot be read .*decoder"):
        evaluate.evaluate(tiny_bundle, tmp_path, tmp_path / "out")


@pytest.mark.usefixtures("short")
def test_a_mask_has_a_limit_of_time(tmp_path: Path) -> None:
    (tmp_path / "slow.png").write_bytes(chunk_bomb())
    (line,) = (finding.line() for finding in read_masks(tmp_path).all_findings())
    assert "the mask cannot be read, such as slow.png (the" in line
    assert "decoder" in line


@pytest.mark.usefixtures("short")
def test_the_review_page_shows_no_image_that_takes_too_long(tmp_path: Path) -> None:
    sha256, path = store_bytes(tmp_path, chunk_bomb(), ".png")
    item = SimpleNamespace(path=path, key=(sha256,))
    review: Any = SimpleNamespace(dataset=tmp_path, items=[item])
    app = _ReviewApp(review, "", {})
    for show in (app._thumb, app._large):
        with pytest.raises(DamagedImage, match="decoder"):
            show(0)


def test_a_photo_that_kills_a_lasting_process_is_tried_once_more_only_if_another_may_have(
    tmp_path: Path,
) -> None:
    fifo, out = tmp_path / "fifo", tmp_path / "out"
    os.mkfifo(fifo)
    out.touch()
    process = LastingProcess(lasting_decoding, {"out": str(out)}, LIMITS)
    photo = b"{}\n" + encode(paint(1, 64, 48))
    for acts, answer in (
        ((signal.SIGKILL, photo), {"reason": "", "detail": "", "size": [48, 64]}),
        ((signal.SIGKILL,) * 2, Failure("decode-crash", "its decoder was ended by SIGKILL")),
        ((signal.SIGSEGV,), Failure("decode-crash", "its decoder was ended by SIGSEGV")),
    ):
        killer = on_each_reader(fifo, *acts)
        assert process.ask(fifo) == answer
        killer.join(10)
        assert not killer.is_alive()
    process.end()
