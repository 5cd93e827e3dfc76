import multiprocessing
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.loader.ahead import work_ahead
from skindx.data.loader.crop import Window, random_window, resize_into, shrink
from skindx.data.loader.load import fill_crop, load
from skindx.data.loader.pool import Pool
from skindx.data.loader.source import Files, InMemory
from skindx.data.manifest import Record
from skindx.data.screening.decode import DamagedPicture, decode
from skindx.data.store import put
from skindx.errors import UserError

NAME = "skindx-loader"


def loader_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith(NAME)]


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Paint something smooth with edges and a little noise, as photographs have."""
    import cv2

    rng = np.random.default_rng(seed)
    coarse = rng.integers(40, 220, (6, 8, 3), dtype=np.uint8)
    picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.circle(picture, (width // 3, height // 2), min(height, width) // 5, (80, 40, 30), -1)
    noisy = picture + rng.normal(0, 3, picture.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def jpeg(picture: np.ndarray, quality: int = 92) -> bytes:
    import simplejpeg

    return simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality, "RGB", "420")


def dataset(folder: Path, count: int = 6, height: int = 60, width: int = 90) -> Files:
    records = []
    for index in range(count):
        sha256, path = put(folder, jpeg(photo(height, width, index)), ".jpg")
        records.append(Record(path, sha256, "", width, height, "x", sha256, "train"))
    return Files(folder, records)


def number_fill(index: int, out: np.ndarray) -> None:
    out[...] = index


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
    for pictures, indices in zip(loaded, batches, strict=True):
        assert pictures.shape == (len(indices), 4, 4, 3)
        assert pictures.dtype == np.uint8
        assert (pictures == (indices % 256).astype(np.uint8)[:, None, None, None]).all()
    seen = Counter(int(each) for indices in batches for each in indices)
    assert seen == Counter(range(sum(sizes)))


def test_memory_is_bounded_by_the_prefetch() -> None:
    live = Counter()
    most = 0

    def allocate(shape):
        nonlocal most
        pictures = np.empty(shape, np.uint8)
        weakref.finalize(pictures, live.subtract, ["batch"])
        live.update(["batch"])
        most = max(most, live["batch"])
        return pictures

    batches = np.split(np.arange(240), 15)
    for pictures in load(number_fill, batches, 4, threads=4, prefetch=2, allocate=allocate):
        time.sleep(0.005)  # a slow consumer
        del pictures
    # Two ahead, one that is begun for the last place, and the one in use.
    assert most <= 4
    assert live["batch"] == 0


def test_a_batch_is_not_written_while_somebody_looks_at_it() -> None:
    pool = Pool()
    batches = np.split(np.arange(60), 20)
    kept = [
        each[1:2] for each in load(number_fill, batches, 4, threads=3, prefetch=2, allocate=pool)
    ]
    assert [int(each[0, 0, 0, 0]) for each in kept] == [int(batch[1]) for batch in batches]


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


@given(
    height=st.integers(1, 2000),
    width=st.integers(1, 2000),
    low=st.floats(0.05, 1),
    seed=st.integers(0, 2**32),
)
def test_a_window_lies_inside(height: int, width: int, low: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    window = random_window(height, width, (low, 1.0), (0.8, 1.25), rng)
    assert window.top >= 0
    assert window.left >= 0
    assert window.top + window.height <= 1 + 1e-9
    assert window.left + window.width <= 1 + 1e-9
    aspect = window.width * width / (window.height * height)
    assert 0.8 - 1e-9 <= aspect <= 1.25 + 1e-9
    if 0.8 <= width / height <= 1.25:
        assert window.height * window.width >= low - 1e-9
    rows, columns = window.of(np.zeros((height, width, 3), np.uint8)).shape[:2]
    assert 1 <= rows <= height
    assert 1 <= columns <= width


def test_windows_cover_the_picture_evenly() -> None:
    rng = np.random.default_rng(0)
    windows = [random_window(300, 300, (0.25, 0.25), (1.0, 1.0), rng) for _ in range(2000)]
    assert {round(each.height, 6) for each in windows} == {0.5}
    assert np.mean([each.top for each in windows]) == pytest.approx(0.25, abs=0.01)
    assert np.mean([each.left for each in windows]) == pytest.approx(0.25, abs=0.01)


def test_a_strip_gives_its_middle() -> None:
    window = random_window(100, 1000, (0.9, 1.0), (0.8, 1.25), np.random.default_rng(0))
    assert window == Window(0.0, pytest.approx(0.4375), 1.0, pytest.approx(0.125))


@pytest.mark.parametrize("size", [(100, 130), (300, 200), (64, 64), (20, 30)])
def test_resizing_writes_in_place(size: tuple[int, int]) -> None:
    import cv2

    picture = photo(*size)
    batch = np.zeros((3, 64, 64, 3), np.uint8)
    resize_into(picture, batch[1])
    area = max(size) > 128
    expected = cv2.resize(
        picture, (64, 64), interpolation=cv2.INTER_AREA if area else cv2.INTER_LINEAR
    )
    assert (batch[1] == expected).all()
    assert not batch[0].any()
    assert not batch[2].any()


# decoding no larger than needed


def test_a_large_picture_is_decoded_smaller_but_large_enough() -> None:
    data = jpeg(photo(800, 1200))
    assert decode(data).shape == (800, 1200, 3)
    assert decode(data, at_least=(100, 100)).shape == (100, 150, 3)
    assert decode(data, at_least=(101, 100)).shape == (200, 300, 3)
    assert decode(data, at_least=(900, 100)).shape == (800, 1200, 3)
    # 7/8 would do, but takes longer than all of it.
    assert decode(data, at_least=(690, 1000)).shape == (800, 1200, 3)


def test_an_upright_picture_has_its_own_sides() -> None:
    import io

    from PIL import Image

    exif = Image.Exif()
    exif[274] = 6
    out = io.BytesIO()
    Image.fromarray(photo(600, 1200)).save(out, "jpeg", exif=exif, quality=92)
    whole = decode(out.getvalue())
    small = decode(out.getvalue(), at_least=(300, 150))
    assert whole.shape == (1200, 600, 3)
    assert small.shape == (300, 150, 3)
    assert np.abs(shrink(whole, 150).astype(int) - small).mean() < 2


@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\xff\xfe\x00\x09comment",
        b"\xff\xff\xff\xfe\x00\x06\xff\xda\xff\xe1",
        b"\xff\xe2\x00\x02",
    ],
)
@pytest.mark.parametrize("orientation", [None, 1, 3, 6])
def test_metadata_is_found_behind_other_segments(before: bytes, orientation: int | None) -> None:
    import io

    from PIL import Image

    exif = Image.Exif()
    if orientation:
        exif[274] = orientation
    out = io.BytesIO()
    Image.fromarray(photo(60, 90)).save(out, "jpeg", exif=exif)
    data = out.getvalue()
    plain = decode(jpeg(photo(60, 90))).shape
    turned = decode(data[:2] + before + data[2:])
    assert turned.shape == (plain if orientation != 6 else (90, 60, 3))
    if orientation == 3:
        exif[274] = 1
        out = io.BytesIO()
        Image.fromarray(photo(60, 90)).save(out, "jpeg", exif=exif)
        assert (turned == decode(out.getvalue())[::-1, ::-1]).all()


@given(height=st.integers(230, 900), width=st.integers(230, 900), seed=st.integers(0, 99))
def test_a_crop_decoded_small_looks_as_one_of_the_whole(height: int, width: int, seed: int) -> None:
    import cv2

    picture = photo(height, width, seed)
    data = jpeg(picture)
    rng = np.random.default_rng(seed)
    window = random_window(height, width, (0.3, 1.0), (0.8, 1.25), rng)
    ours = np.empty((96, 96, 3), np.uint8)
    resize_into(window.of(decode(data, at_least=window.needs(96))), ours)
    theirs = cv2.resize(window.of(decode(data)), (96, 96), interpolation=cv2.INTER_AREA)
    error = np.square(ours.astype(float) - theirs).mean()
    assert 10 * np.log10(255**2 / max(error, 1e-9)) > 28


def test_damage_is_found_at_every_scale() -> None:
    data = bytearray(jpeg(photo(800, 1200)))
    data[len(data) // 2 : len(data) // 2 + 400] = b"\xff\xd9" * 200
    for at_least in (None, (100, 100), (300, 300), (700, 700)):
        with pytest.raises(DamagedPicture):
            decode(bytes(data), at_least=at_least)


# sources


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
        with pytest.raises(UserError, match=rf"{files.path(index)} cannot be read .*build the"):
            InMemory(tmp_path, files.records).picture(index)
    with pytest.raises(UserError, match="build the dataset again"):
        files.size_bytes(3)

    def fill(index: int, out: np.ndarray) -> None:
        fill_crop(files, index, out, np.random.default_rng(0), scale=(1, 1), ratio=(1, 1))

    with pytest.raises(UserError, match=str(files.path(2))):
        list(load(fill, [np.arange(6)], 16, threads=2, prefetch=2))
    assert not loader_threads()


@given(threads=st.integers(1, 6), order=st.permutations(range(6)))
def test_threads_and_order_do_not_change_a_crop(
    tmp_path_factory: pytest.TempPathFactory, threads: int, order: list[int]
) -> None:
    files = _shared(tmp_path_factory)

    def fill(index: int, out: np.ndarray) -> None:
        rng = np.random.default_rng((7, index))
        fill_crop(files, index, out, rng, scale=(0.3, 1), ratio=(0.8, 1.25))

    alone = np.empty((6, 32, 32, 3), np.uint8)
    for index in range(6):
        fill(index, alone[index])
    batches = np.split(np.array(order), 3)
    for pictures, indices in zip(
        load(fill, batches, 32, threads=threads, prefetch=2), batches, strict=True
    ):
        assert (pictures == alone[indices]).all()


_SHARED: list[Files] = []


def _shared(factory: pytest.TempPathFactory) -> Files:
    if not _SHARED:
        _SHARED.append(dataset(factory.mktemp("shared")))
    return _SHARED[0]


def test_the_whole_window_is_the_picture() -> None:
    picture = photo(31, 47)
    whole = Window(0.0, 0.0, 1.0, 1.0)
    assert (whole.of(picture) == picture).all()
    assert whole.needs(31) == (31, 31)


# processes


def _epoch_in_child(files: Files, pipe) -> None:
    def fill(index: int, out: np.ndarray) -> None:
        out[...] = files.picture(index)[:8, :8]

    pipe.send([each.sum() for each in load(fill, [np.arange(6)] * 3, 8, threads=2, prefetch=2)])


def test_a_fork_in_mid_epoch_can_load_for_itself(tmp_path: Path) -> None:
    files = InMemory(tmp_path, dataset(tmp_path).records)

    def fill(index: int, out: np.ndarray) -> None:
        out[...] = files.picture(index)[:8, :8]

    running = load(fill, [np.arange(6)] * 50, 8, threads=2, prefetch=2)
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
    modules = "load", "pixels", "budget", "settings", "source"
    code = f"import sys, {', '.join(f'skindx.data.loader.{each}' for each in modules)}\n"
    code += "sys.exit('torch' in sys.modules or 'cv2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
