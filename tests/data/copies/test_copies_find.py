"""The search over a dataset: whatever runs it, in whatever parts, it finds the same pairs."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from copies_dataset import make_dataset, painted, put

from skindx.core.errors import JobError
from skindx.data.copies import copy_candidates, describe
from skindx.data.copies.describe import (
    DescriptionLibrary,
    DescriptionShard,
    folder_of,
    sha256_of,
    shard_files,
)
from skindx.data.copies.find import find_copies, same_pictures
from skindx.data.copies.verified import keep_only
from skindx.data.copies.verify import Copy
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.workers.task_runner import LocalRunner

Made = tuple[Path, list[str], set[tuple[int, int]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    dataset = tmp_path_factory.mktemp("copies") / "data"
    return dataset, *make_dataset(dataset)


@pytest.fixture(scope="module")
def found(made: Made) -> list[Copy]:
    dataset, paths, _ = made
    return find_copies(dataset, paths, runner=LocalRunner(1))


def framed(pixels: np.ndarray) -> np.ndarray:
    """Show an image in the window of a browser: a bar, an address, lines of text."""
    height, width = pixels.shape[:2]
    page = np.full((height + 120, width + 60, 3), 250, np.uint8)
    page[:20] = (70, 130, 190)
    for button in range(3):
        cv2.circle(page, (10 + 12 * button, 10), 4, (200, 60 + 60 * button, 50), -1, cv2.LINE_AA)
    page[50 : 50 + height, 30 : 30 + width] = pixels
    lines = ("https://www.atlas.example", "Home   Atlas   Search", "clinic skin photo library",
             "derma image atlas photo", "pathology medica skin")  # fmt: skip
    rows = (34, 47, *(50 + height + below for below in (20, 40, 60)))
    for words, row in zip(lines, rows, strict=True):
        size = 0.5 if row > 50 else 0.4
        cv2.putText(page, words, (30, row), 0, size, (50, 50, 50), 1, cv2.LINE_AA)
    return page


class Threads(LocalRunner):
    """Workers that end in any order; `losing` of them never end."""

    def __init__(self, losing: str = "") -> None:
        super().__init__(1)
        self.losing = losing
        self.asked: list[Any] = []

    def run(self, function: Any, tasks: Any, on_done: Any = None) -> list[Any]:
        self.asked += [(function.__name__, task) for task in tasks]
        lost = [task for task in tasks if self.losing and self.losing in repr(task)]
        alive = [task for task in tasks if task not in lost][::-1]
        with ThreadPoolExecutor(3) as pool:
            for task, _ in zip(alive, pool.map(lambda task: function(*task), alive), strict=True):
                if on_done:
                    on_done(task)
        return lost


def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "SHARD_IMAGES", 3)
    monkeypatch.setattr(copy_candidates, "CHUNK_IMAGES", 2)
    monkeypatch.setattr("skindx.data.copies.find.PART_PAIRS", 1)


def test_copies_are_found_and_nothing_else(made: Made, found: list[Copy]) -> None:
    _, _, copies = made
    assert {(copy.first, copy.second) for copy in found if copy.same} == copies
    assert [copy.mirrored for copy in found if copy.same] == [False, True, False]


def test_parts_and_their_order_change_nothing(
    made: Made, found: list[Copy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, paths, _ = made
    in_small_parts(monkeypatch)
    again, _ = make_dataset(tmp_path / "again")
    assert again == paths
    runner = Threads()
    assert find_copies(tmp_path / "again", paths, runner=runner) == found
    assert len(runner.asked) > 12


def test_two_processes_of_this_machine_find_the_same(
    made: Made, found: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, paths, _ = made
    in_small_parts(monkeypatch)
    assert find_copies(dataset, paths, runner=LocalRunner(2)) == found


def test_the_order_of_the_paths_turns_the_evidence(made: Made, found: list[Copy]) -> None:
    dataset, paths, _ = made
    turned = find_copies(dataset, paths[::-1], runner=LocalRunner(1))
    last = len(paths) - 1
    back = sorted(
        (copy.turned() for copy in turned), key=lambda copy: (last - copy.first, copy.second)
    )
    for one, other in zip(found, back, strict=True):
        assert (one.first, one.second) == (last - other.first, last - other.second)
        assert one.probability == other.probability
        np.testing.assert_allclose(one.transform_23, other.transform_23, atol=1e-3)


def test_a_pair_that_only_hashes_name_is_verified_too(
    made: Made, found: list[Copy], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, paths, _ = made
    monkeypatch.setattr(copy_candidates, "VOTES", 250)
    monkeypatch.setattr(copy_candidates, "ALIKE_LEAST", 250)
    assert find_copies(dataset, paths, runner=LocalRunner(1)) == []
    named = np.array([[6, 0], [0, 1], [3, 3], [0, 6]])
    only = find_copies(dataset, paths, runner=LocalRunner(1), hash_candidates=named)
    assert only == [found[0]]


def test_more_images_change_nothing_and_describe_only_themselves(
    made: Made, found: list[Copy]
) -> None:
    dataset, paths, _ = made
    before = {file.name: file.read_bytes() for file in shard_files(folder_of(dataset))}
    more = [*paths, put(dataset, painted(40)), put(dataset, painted(41))]
    runner = Threads()
    assert find_copies(dataset, more, runner=runner) == found
    described = [task for name, task in runner.asked if name == "describe_shard"]
    assert [list(task[1]) for task in described] == [sorted(more[-2:])]
    after = {file.name: file.read_bytes() for file in shard_files(folder_of(dataset))}
    assert before.items() <= after.items()


def test_what_cannot_be_decoded_has_no_copies(tmp_path: Path) -> None:
    paths, copies = make_dataset(tmp_path)
    damaged = tmp_path / paths[6]
    damaged.write_bytes(damaged.read_bytes()[:200])
    (tmp_path / paths[7]).unlink()
    found = find_copies(tmp_path, paths, runner=LocalRunner(1))
    assert {(copy.first, copy.second) for copy in found if copy.same} == {(4, 8)} <= copies


def test_none_and_one_image_have_no_copies(tmp_path: Path) -> None:
    assert find_copies(tmp_path, [], runner=LocalRunner(1)) == []
    assert find_copies(tmp_path, [put(tmp_path, painted(1))], runner=LocalRunner(1)) == []


def test_a_part_that_ends_its_worker_is_reported_in_one_sentence(made: Made) -> None:
    dataset, paths, _ = made
    with pytest.raises(JobError, match=r"1 of 1 parts of the search .* run the same"):
        find_copies(dataset, paths[:8], runner=Threads(losing="votes-"))


def test_a_removed_image_leaves_no_description(tmp_path: Path) -> None:
    paths, _ = make_dataset(tmp_path)
    find_copies(tmp_path, paths, runner=LocalRunner(1))
    old = folder_of(tmp_path).parent / "v0-older"
    old.mkdir()
    keep_only(tmp_path, [sha256_of(path) for path in paths[1:]])
    assert not old.exists()
    assert sha256_of(paths[0]) not in DescriptionLibrary(tmp_path)
    (file,) = shard_files(folder_of(tmp_path))
    assert sha256_of(paths[0]).encode() not in file.read_bytes()
    assert sorted(DescriptionShard(file).sha256s) == sorted(sha256_of(path) for path in paths[1:])
    keep_only(tmp_path, [])
    assert shard_files(folder_of(tmp_path)) == []


KILLED = """
import sys
from pathlib import Path
from skindx.data.copies import describe
from skindx.data.copies.find import find_copies
from skindx.workers.task_runner import LocalRunner
describe.SHARD_IMAGES = 2
find_copies(Path(sys.argv[1]), sys.argv[2:], runner=LocalRunner(1))
"""


@pytest.mark.timeout(120)
def test_a_killed_search_goes_on_after_its_last_shard(
    found: list[Copy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = make_dataset(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), *paths])
    while not shard_files(folder_of(tmp_path)) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    monkeypatch.setattr(describe, "SHARD_IMAGES", 2)
    there = [
        sha256
        for file in shard_files(folder_of(tmp_path))
        for sha256 in DescriptionShard(file).sha256s
    ]
    runner = Threads()
    assert find_copies(tmp_path, paths, runner=runner) == found
    described = [task[1] for name, task in runner.asked if name == "describe_shard"]
    assert sum(map(len, described)) == len(paths) - len(there)


def test_near_hashes_group_only_what_the_pixels_confirm(tmp_path: Path) -> None:
    photos = (cv2.resize(paint(CLASSES[n], n, 5).pixels, (256, 192)) for n in (0, 3))
    page = [framed(np.asarray(photo, np.uint8)) for photo in photos]
    smaller = cv2.resize(page[0], None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    smooth = [np.full((120, 160, 3), level, np.uint8) for level in (120, 121)]
    paths = [put(tmp_path, pixels) for pixels in (*page, smaller, *smooth)]
    near = np.array([[0, 1], [2, 0], [2, 1], [3, 4]])
    runner = LocalRunner(1)
    found = find_copies(tmp_path, paths, runner=runner, hash_candidates=near)
    assert [(copy.first, copy.second) for copy in found] == [(0, 2)]
    answers = [False, True, False, False]
    assert same_pictures(tmp_path, paths, near, runner=runner).tolist() == answers
    assert same_pictures(tmp_path, paths, near[:0], runner=runner).tolist() == []
