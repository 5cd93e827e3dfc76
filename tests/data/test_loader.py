import io
import multiprocessing
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_images import dataset, photo
from PIL import Image

from skindx.core.errors import UserError
from skindx.data.layout import store_bytes
from skindx.data.loader.crops import Window, fill_crops, fill_random_crops, sample_seeds
from skindx.data.loader.load import Fill, Pool, load, work_ahead
from skindx.data.loader.source import Files, InMemory
from skindx.data.manifest import Record
from skindx.imaging.decode import decode
from skindx.imaging.stored_colours import Decoding, coded_colours

NAME = "skindx-loader"


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def number_fill(indices: Sequence[int], out: np.ndarray) -> None:
    out[...] = np.array(indices).reshape(-1, 1, 1, 1)


def corner_fill(files: Files) -> Fill:
    """Return a function that writes the corner of each image."""

    def fill(indices: Sequence[int], out: np.ndarray) -> None:
        for index, square in zip(indices, out, strict=True):
            square[...] = files.image(index)[:8, :8]

    return fill


# work_ahead


@given(
    count=st.integers(0, 40),
    threads=st.integers(1, 6),
    ahead=st.integers(1, 9),
    stop=st.integers(0, 45),
)
def test_ahead_keeps_the_order_and_its_bound(
    count: int, threads: int, ahead: int, stop: int
) -> None:
    taken = 0

    def items():
        nonlocal taken
        for item in range(count):
            taken += 1
            yield item

    got = []
    values = work_ahead(lambda item: item * item, items(), threads=threads, ahead=ahead)
    for value in values:
        got.append(value)
        assert taken - len(got) < ahead
        if len(got) == stop:
            break
    values.close()
    assert got == [item * item for item in range(count)][: len(got)]
    assert len(got) == (min(count, stop) if stop else count)
    assert not loader_threads()


def test_an_error_comes_at_its_turn_and_ends_the_threads() -> None:
    def fail_at_5(item: int) -> int:
        if item == 5:
            raise UserError("picture five")
        return item

    values = work_ahead(fail_at_5, range(100), threads=3, ahead=10)
    assert [next(values) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="picture five"):
        next(values)
    assert not loader_threads()


def test_nothing_starts_before_it_is_asked_for() -> None:
    values = work_ahead(lambda item: item, iter([1]), threads=2, ahead=2)
    assert not loader_threads()
    assert next(values) == 1
    assert loader_threads()
    del values  # as a `for` loop does that is left
    assert not loader_threads()


def test_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)
    list(work_ahead(lambda item: meeting.wait(), range(3), threads=3, ahead=3))


# load


@given(
    sizes=st.lists(st.integers(0, 30), max_size=6),
    threads=st.integers(1, 5),
    prefetch=st.integers(1, 3),
)
def test_every_number_once_in_its_batch(sizes: list[int], threads: int, prefetch: int) -> None:
    order = np.random.default_rng(0).permutation(sum(sizes))
    batches = np.split(order, np.cumsum(sizes)[:-1]) if sizes else []
    loaded = list(load(number_fill, batches, 4, threads=threads, prefetch=prefetch))
    assert len(loaded) == len(batches)
    for images, indices in zip(loaded, batches, strict=True):
        assert images.shape == (len(indices), 4, 4, 3)
        assert images.dtype == np.uint8
        assert (images == (indices % 256).astype(np.uint8)[:, None, None, None]).all()
    seen = Counter(int(index) for indices in batches for index in indices)
    assert seen == Counter(range(sum(sizes)))


def test_memory_is_bounded_by_the_prefetch() -> None:
    live = Counter()
    most = 0

    def allocate(shape):
        nonlocal most
        images = np.empty(shape, np.uint8)
        weakref.finalize(images, live.subtract, ["batch"])
        live.update(["batch"])
        most = max(most, live["batch"])
        return images

    batches = np.split(np.arange(240), 15)
    for images in load(number_fill, batches, 4, threads=4, prefetch=2, allocate=allocate):
        time.sleep(0.005)  # a slow consumer
        del images
    # Two ahead, one that is begun for the last place, and the one in use.
    assert most <= 4
    assert live["batch"] == 0


def test_a_batch_is_not_written_while_somebody_looks_at_it() -> None:
    pool = Pool()
    batches = np.split(np.arange(60), 20)
    kept = [
        loaded[1:2]
        for loaded in load(number_fill, batches, 4, threads=3, prefetch=2, allocate=pool)
    ]
    assert [int(images[0, 0, 0, 0]) for images in kept] == [int(batch[1]) for batch in batches]


def test_memory_is_used_again_when_its_last_view_is_gone() -> None:
    pool = Pool()
    first = pool((2, 4, 4, 3))
    address = first.ctypes.data
    view = first[0][1:]
    del first
    second = pool((2, 4, 4, 3))
    assert second.ctypes.data != address
    del view
    assert pool((2, 4, 4, 3)).ctypes.data == address


# crops


def test_files_are_read_once_where_memory_allows(tmp_path: Path) -> None:
    files = dataset(tmp_path, count=200, height=16, width=16)
    for share, low, high in ((1.0, 200, 200), (0.5, 90, 110), (0.0, 0, 0)):
        for step in (1, 2, 3):  # a rank of a sharded set sees every second or third
            source = InMemory(tmp_path, files.records, share)
            seen = range(0, 200, step)
            for index in seen:
                assert source.read(index) == files.read(index)
            kept = len(source._kept) * step
            assert low - 10 * (0 < share < 1) <= kept <= high + 10 * (share > 0)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = dataset(tmp_path)
    files.path(2).write_bytes(files.read(2)[:-900])
    files.path(3).unlink()
    for index in (2, 3):
        with pytest.raises(UserError, match=rf"{files.path(index)} cannot be read"):
            InMemory(tmp_path, files.records).image(index)
    with pytest.raises(UserError, match="build the dataset again"):
        files.size_bytes(3)

    def fill(indices: Sequence[int], out: np.ndarray) -> None:
        fill_crops(files, indices, np.tile([0.0, 0.0, 1.0, 1.0], (len(indices), 1)), out)

    with pytest.raises(UserError, match=str(files.path(2))):
        list(load(fill, [np.arange(6)], 16, threads=2, prefetch=2))
    assert not loader_threads()


@given(threads=st.integers(1, 6), order=st.permutations(range(6)))
def test_threads_and_order_do_not_change_a_crop(
    tmp_path_factory: pytest.TempPathFactory, threads: int, order: list[int]
) -> None:
    files = _shared(tmp_path_factory)

    def fill(indices: Sequence[int], out: np.ndarray) -> None:
        seeds = sample_seeds((7,), indices)
        fill_random_crops(files, indices, seeds, (0.3, 1), (0.8, 1.25), out_TSS3=out)

    alone = np.empty((6, 32, 32, 3), np.uint8)
    for index in range(6):
        fill([index], alone[index : index + 1])
    batches = np.split(np.array(order), 3)
    for images, indices in zip(
        load(fill, batches, 32, threads=threads, prefetch=2), batches, strict=True
    ):
        assert (images == alone[indices]).all()


_SHARED: list[Files] = []


def _shared(factory: pytest.TempPathFactory) -> Files:
    if not _SHARED:
        _SHARED.append(dataset(factory.mktemp("shared")))
    return _SHARED[0]


def test_the_whole_window_is_the_image() -> None:
    image = photo(31, 47)
    whole = Window(0.0, 0.0, 1.0, 1.0)
    assert (whole.cut(image) == image).all()
    assert whole.needs(31, 31) == (31, 31)


def encoded(image: np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(image).convert(options.pop("mode", "RGB")).save(data, kind, **options)
    return data.getvalue()


def kinds_of_file() -> dict[str, bytes]:
    image, turned = photo(60, 90), Image.Exif()
    turned[274] = 6
    wide = coded_colours(12, 13).profile  # Display P3
    plain = encoded(image)
    return {
        "plain": plain,
        "turned": encoded(image, exif=turned),
        "wide colours": encoded(image, icc_profile=wide),
        "both": encoded(image, exif=turned, icc_profile=wide),
        "progressive": encoded(image, progressive=True),
        "grey": encoded(image, mode="L"),
        "four inks": encoded(image, mode="CMYK"),
        "PNG": encoded(image, "PNG"),
        "bytes behind": plain[:-2] + bytes(40) + plain[-2:],
    }


@pytest.mark.parametrize("decoding", ["srgb-1", "as-stored"])
@pytest.mark.parametrize("kind", list(kinds_of_file()))
def test_a_header_that_was_read_once_changes_no_pixel(
    tmp_path: Path, kind: str, decoding: Decoding
) -> None:
    data = kinds_of_file()[kind]
    height, width = decode(data).shape[:2]
    sha256, path = store_bytes(tmp_path, data, ".png" if kind == "PNG" else ".jpg")
    records = [Record(path, sha256, "", width, height, "x", sha256, "train")]
    files, kept = Files(tmp_path, records, decoding), InMemory(tmp_path, records, 1.0, decoding)
    for at_least in (None, (20, 30), (30, 20), (60, 60), (20, 30)):
        for _ in range(2):
            expected = files.image(0, at_least)
            np.testing.assert_array_equal(kept.image(0, at_least), expected, strict=True)


def test_bytes_in_the_place_of_others_have_their_own_header(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[274] = 3
    square, wide = photo(60, 60), coded_colours(12, 13).profile
    source = InMemory(tmp_path, [Record("", "", "", 60, 60, "x", "", "train")])
    for data in (
        encoded(square, exif=turned),
        encoded(square),
        encoded(square, icc_profile=wide),
        encoded(square, "PNG"),
        encoded(square, exif=turned),
    ):
        source.hold(0, data)
        expected = decode(data, at_least=(20, 20))
        np.testing.assert_array_equal(source.image(0, (20, 20)), expected, strict=True)
    assert source.take(0) is data
    assert not source._headers


def test_damage_is_still_damage_where_the_header_is_known(tmp_path: Path) -> None:
    files = dataset(tmp_path, 1)
    source = InMemory(tmp_path, files.records)
    whole = files.read(0)
    broken = whole[: len(whole) // 2] + b"\xff\xd9"
    source.hold(0, broken)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot be read"):
            source.image(0, (20, 20))


# processes


def _epoch_in_child(files: Files, pipe) -> None:
    fill = corner_fill(files)
    pipe.send([batch.sum() for batch in load(fill, [np.arange(6)] * 3, 8, threads=2, prefetch=2)])


def test_a_fork_in_mid_epoch_can_load_for_itself(tmp_path: Path) -> None:
    files = InMemory(tmp_path, dataset(tmp_path).records)

    running = load(corner_fill(files), [np.arange(6)] * 50, 8, threads=2, prefetch=2)
    first = next(running).sum()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_epoch_in_child, args=(files, theirs), daemon=True)
    child.start()
    assert ours.poll(60), "the child hangs"
    assert ours.recv() == [first] * 3
    child.join(30)
    assert child.exitcode == 0
    assert sum(1 for _ in running) == 49


def test_the_loader_never_imports_torch() -> None:
    modules = "load", "pixels", "cache", "settings", "source"
    code = f"import sys, {', '.join(f'skindx.data.loader.{module}' for module in modules)}\n"
    code += "sys.exit('torch' in sys.modules or 'cv2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
