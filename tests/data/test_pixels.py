import dataclasses
import errno
import multiprocessing
import os
import re
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from loader_images import dataset, jpeg, photo

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.loader.crops import Window, draw_windows, fill_crops, resize_into
from skindx.data.loader.pixels import open_pixels, pixels_bytes
from skindx.data.loader.source import Files
from skindx.imaging.decode import decode
from skindx.imaging.resize import shrink


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return dataset(tmp_path / "data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "train.pixels"


def written(file: Path, files: Files, side: int = 40) -> bool:
    """Open the cache, check its content, and return whether it was written."""
    reported: list[int] = []
    pixels = open_pixels(file, files, side, threads=2, on_write=reported.append)
    assert len(pixels) == len(files.records)
    for index in range(len(pixels)):
        image = decode(files.read(index))
        if min(image.shape[:2]) > side:
            image = shrink(image, side)
        assert (pixels.image(index) == image).all()
        assert pixels.size(index) == image.shape[:2]
        assert not pixels.image(index).flags.writeable
    assert reported in ([], [pixels_bytes(files, side)])
    assert file.stat().st_size == pixels_bytes(files, side)
    return bool(reported)


def test_written_once(files: Files, file: Path) -> None:
    assert written(file, files)
    assert not written(file, files)
    assert sorted(entry.name for entry in file.parent.iterdir()) == [file.name, f"{file.name}.lock"]


@pytest.mark.parametrize("side", [48, 16, 15])  # the last ones are averaged: a factor above two
def test_crops_of_many_images_are_those_of_one_at_a_time(
    files: Files, file: Path, side: int
) -> None:
    pixels = open_pixels(file, files, 40, threads=2)
    indices = [3, 0, 5, 3]
    sizes_T2 = np.array([pixels.size(index) for index in indices])
    windows_T4 = draw_windows(sizes_T2, range(4), (0.3, 1.0), (0.8, 1.25))
    out_TSS3 = np.empty((4, side, side, 3), np.uint8)
    fill_crops(pixels, indices, windows_T4, out_TSS3)
    for index, row, out_SS3 in zip(indices, windows_T4.tolist(), out_TSS3, strict=True):
        alone_SS3 = np.empty_like(out_SS3)
        resize_into(Window(*row).cut(pixels.image(index)), alone_SS3)
        np.testing.assert_array_equal(out_SS3, alone_SS3)


def test_small_images_are_not_enlarged(files: Files, file: Path) -> None:
    assert written(file, files, side=500)
    assert pixels_bytes(files, 500) == 4096 + 6 * 60 * 90 * 3


def test_what_does_not_fit_is_written_anew(files: Files, file: Path) -> None:
    written(file, files)
    whole = file.read_bytes()
    for other in (whole[:-1], whole[:5000], b"", b"x" * len(whole), whole + b"more"):
        file.write_bytes(other)
        assert written(file, files)
    assert file.read_bytes() == whole
    assert written(file, files, side=41)
    assert written(file, files, side=40)
    # The same number of bytes, but another image in one place.
    sha256, path = store_bytes(files.dataset, jpeg(photo(60, 90, 77)), ".jpg")
    records = [
        *files.records[:-1],
        dataclasses.replace(files.records[-1], path=path, sha256=sha256),
    ]
    assert written(file, Files(files.dataset, records))
    assert written(file, Files(files.dataset, records[::-1]))


def test_an_image_that_is_not_the_manifests_is_refused(files: Files, file: Path) -> None:
    first = files.records[0]
    for change, said in (
        ({"sha256": "0" * 64}, "cannot be read .*its content differs from its SHA-256"),
        ({"width": 91}, "has 90 x 60 pixels, but the manifest says 91 x 60"),
        ({"path": "store/gone.jpg"}, "cannot be read .*No such file"),
    ):
        records = [dataclasses.replace(first, **change), *files.records[1:]]
        with pytest.raises(UserError, match=rf"{said}.*build"):
            open_pixels(file, Files(files.dataset, records), 40, threads=2)
        assert [entry.name for entry in file.parent.iterdir()] == [f"{file.name}.lock"]


def test_a_full_disk_is_one_sentence(
    files: Files, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UserError) as caught:
        open_pixels(file, files, 40, threads=2)
    assert re.fullmatch(
        r"the image cache needs \S+ GB in \S+, where \S+ GB are free; "
        r"set `loader\.cache\.folder` to a folder on another disk, or "
        r"set `loader\.cache\.kind` to memory\.",
        str(caught.value),
    )
    assert [entry.name for entry in file.parent.iterdir()] == [f"{file.name}.lock"]


def test_a_folder_that_cannot_be_made_is_one_sentence(files: Files, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UserError, match=r"cannot be written to .*set `loader\.cache\.folder"):
        open_pixels(tmp_path / "taken" / "train.pixels", files, 40, threads=2)


def _write_under_a_limit(file: Path, files: Files, pipe) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
    try:
        open_pixels(file, files, 40, threads=2)
    except UserError as error:
        pipe.send((str(error), sorted(entry.name for entry in file.parent.iterdir())))


def _count_writes(file: Path, files: Files, pipe) -> None:
    reported: list[int] = []
    pixels = open_pixels(file, files, 40, threads=1, on_write=reported.append)
    pipe.send((len(reported), int(np.sum([pixels.image(index).sum() for index in range(6)]))))


def _die_in_mid_write(file: Path, files: Files, pipe) -> None:
    read = files.read

    def slow(index: int) -> bytes:
        if index == 5:
            pipe.send("writing")
            time.sleep(600)
        return read(index)

    files.read = slow
    open_pixels(file, files, 40, threads=1)


def _start(function, *arguments):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


def _answer(pipe):
    assert pipe.poll(120), "no answer in two minutes"
    return pipe.recv()


def test_the_systems_own_limit_leaves_nothing_behind(files: Files, file: Path) -> None:
    process, pipe = _start(_write_under_a_limit, file, files)
    said, left = _answer(pipe)
    assert "the image cache needs" in said
    assert left == [f"{file.name}.lock"]
    process.join(30)


def test_of_several_processes_one_writes_also_after_one_was_killed(
    files: Files, file: Path
) -> None:
    victim, pipe = _start(_die_in_mid_write, file, files)
    assert _answer(pipe) == "writing"
    # These wait for the one that holds the lock …
    others = [_start(_count_writes, file, files) for _ in range(2)]
    time.sleep(0.2)
    assert not file.exists()
    # … which dies, so that one of them takes over.
    victim.kill()
    answers = [_answer(pipe) for _, pipe in others]
    assert sorted(writes for writes, _ in answers) == [0, 1]
    assert len({total for _, total in answers}) == 1
    for process, _ in others:
        process.join(30)
    assert sorted(entry.name for entry in file.parent.iterdir()) == [file.name, f"{file.name}.lock"]
