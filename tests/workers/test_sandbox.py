"""Faults of decoding processes, made with real ones: they hang, die, are killed, cannot start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from decoder_watch import descendants, on_each_reader, reader_of
from hostile_images import memory_bomb, scan_bomb
from paint_images import paint, save

import skindx
from skindx.data.publish import clean_images
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files, screening_work
from skindx.workers import worker_process
from skindx.workers.sandbox import Failure, run_sandboxed
from skindx.workers.worker_process import SandboxLimits


def images(folder: Path, count: int) -> list[Path]:
    return [save(folder / f"{n}.jpg", paint(n, 64, 64 + n)) for n in range(count)]


def pipe_at(paths: list[Path], position: int) -> Path:
    """Put a named pipe among the images: whoever opens it to read waits for a writer."""
    fifo = paths[0].parent / f"fifo{position}"
    os.mkfifo(fifo)
    paths.insert(position, fifo)
    return fifo


def screen(paths: list[Path], **limits: int) -> list[Screened]:
    return screen_files(paths, ScreenSettings(**limits), ("perceptual",), workers=2)


def reasons(screened: list[Screened]) -> dict[int, str]:
    return {n: each.reason for n, each in enumerate(screened) if each.reason}


def test_an_image_that_hangs_costs_itself_alone(tmp_path: Path) -> None:
    paths = images(tmp_path, 40)
    pipe_at(paths, 5)
    pipe_at(paths, 30)
    pipe_at(paths, 42 - 1)
    screened = screen(paths, timeout_s=1)
    assert reasons(screened) == dict.fromkeys((5, 30, 41), "decode-timeout")
    assert screened[5].detail == "its decoder took longer than 1 s"
    sound = [image.height for image in screened if not image.reason]
    assert sound == [64 + n for n in range(40)], "the order is that of the paths"


@pytest.mark.parametrize(("how", "tries"), [(signal.SIGKILL, 2), (signal.SIGSEGV, 1)])
def test_an_image_that_kills_its_decoder_is_tried_once_more_only_if_another_may_have(
    tmp_path: Path, how: signal.Signals, tries: int
) -> None:
    paths = images(tmp_path, 10)
    fifo = pipe_at(paths, 3)
    killer = on_each_reader(fifo, *[how] * tries)
    screened = screen(paths, timeout_s=60)
    killer.join(10)
    assert not killer.is_alive(), "it was tried so often, and not more often"
    assert reasons(screened) == {3: "decode-crash"}
    assert screened[3].detail == f"its decoder was ended by {how.name}"


def test_an_innocent_image_survives_the_death_of_its_decoder(tmp_path: Path) -> None:
    paths = images(tmp_path, 10)
    fifo = pipe_at(paths, 3)
    on_each_reader(fifo, signal.SIGKILL, paths[0].read_bytes())
    screened = screen(paths, timeout_s=60)
    assert reasons(screened) == {}
    assert screened[3].sha256 == screened[0].sha256


def test_memory_is_limited(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(scan_bomb(2))  # sound, but 49 million pixels
    strange = [Path("/dev/zero"), tmp_path / "gone.jpg", tmp_path, large]
    screened = screen([*images(tmp_path, 3), *strange, *images(tmp_path, 1)], memory_mb=250)
    assert reasons(screened) == {
        3: "decode-memory",
        4: "damaged",
        5: "damaged",
        6: "decode-memory",
    }
    assert "No such file" in screened[4].detail


def test_a_decoder_that_cannot_start_is_reported_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('no decoders today')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"does not start(.|\n)*no decoders today"):
        screen(images(tmp_path, 2))


def test_nothing_is_left_running_when_the_caller_stops(tmp_path: Path) -> None:
    paths = images(tmp_path, 70)
    pipe_at(paths, 69)
    job = {"settings": ScreenSettings().model_dump(mode="json"), "hashes": ["perceptual"]}
    lasting = set(forked())  # decoders of earlier tests
    answers = run_sandboxed(
        screening_work, job, paths, SandboxLimits(timeout_s=600, memory_mb=400), 2
    )
    assert not isinstance(next(answers)[1], Failure)
    assert set(forked()) - lasting
    answers.close()
    assert set(forked()) <= lasting


def forked() -> list[int]:
    """Return the sandboxed processes of this one; the process that forks them stays."""
    return [
        pid
        for server in descendants(os.getpid())
        if b"workers.sandbox" in command(server)
        for pid in descendants(server)
        if command(pid)  # none: it has ended
    ]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


HANG = """
import sys
from pathlib import Path
from skindx.imaging import sandboxed_images
from skindx.data.publish import clean_images
from skindx.data.screening.screen import ScreenSettings, screen_files
settings = ScreenSettings(timeout_s=2)
screen_files([Path(sys.argv[1])], settings, ("perceptual",), workers=1)
"""


def test_a_hanging_decoder_does_not_outlive_a_killed_caller(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    caller = subprocess.Popen(
        [sys.executable, "-c", HANG, str(fifo)], cwd=Path(skindx.__file__).parents[1]
    )
    found, writer = reader_of(fifo)
    caller.kill()
    caller.wait()
    while command(found):  # the kernel's alarm ends it; a hang here is this test's failure
        time.sleep(0.05)
    os.close(writer)


def test_no_images_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process.subprocess, "Popen", None)
    assert screen([]) == []


def test_a_publication_survives_what_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_images, "_TIMES", 1)
    paths = images(tmp_path, 3)
    pipe_at(paths, 1)
    settings = ScreenSettings(timeout_s=1)
    (tmp_path / "clean").mkdir()
    clean = list(clean_images.clean_files(paths, tmp_path / "clean", settings))
    assert [outcome.problem for outcome in clean] == [
        "",
        "its decoder took longer than 1 s",
        "",
        "",
    ]
    assert {outcome.path for outcome in clean if not outcome.problem} == set(
        (tmp_path / "clean").iterdir()
    )


def test_a_lack_of_memory_is_the_problem_of_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_images, "_TIMES", 1)
    sound, bomb, gone = (tmp_path / name for name in ("a.jpg", "b.png", "c.png"))
    save(sound, paint(1))
    bomb.write_bytes(memory_bomb())
    settings = ScreenSettings(memory_mb=200)
    clean = list(clean_images.clean_files([sound, bomb, gone], tmp_path, settings))
    assert [outcome.suffix for outcome in clean] == [".jpg", "", ""]
    assert clean[1].problem.startswith("does not decode")
    assert clean[2].problem == "cannot be read (No such file or directory)"
