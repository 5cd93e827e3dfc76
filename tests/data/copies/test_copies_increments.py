"""A search that goes on from earlier ones finds what a search from nothing finds."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from copies_dataset import make_dataset, painted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skindx.data.copies import find, verified
from skindx.data.copies import verify as acceptance
from skindx.data.copies.describe import Description, describe, sha256_of
from skindx.data.copies.find import find_copies
from skindx.data.copies.verified import (
    VALUES,
    keep_only,
    keep_stored,
    read_verified,
    verified_files,
    verified_folder,
    write_verified,
)
from skindx.data.copies.verify import Copy, evidence_of, verify
from skindx.imaging.hashes import grey
from skindx.workers.task_runner import LocalRunner

# Candidates by hash are verified also where they share no points.
NEAR = np.array([[0, 6], [1, 3], [2, 5]])


class Counted:
    """Verification that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, first: Description, second: Description) -> Copy | None:
        self.calls += 1
        return verify(first, second)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(find, "verify", counted)
    return counted


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a dataset all of whose images are described, and their paths."""
    dataset = tmp_path_factory.mktemp("increments") / "data"
    paths, _ = make_dataset(dataset)
    find_copies(dataset, paths, runner=LocalRunner(1))
    return dataset, paths


def search(dataset: Path, paths: list[str], chosen: list[int]) -> list[Copy]:
    """Search some of the images; hash candidates are those of NEAR that are among them."""
    place = {position: at for at, position in enumerate(chosen)}
    near = [[place[i], place[j]] for i, j in NEAR.tolist() if i in place and j in place]
    named = np.array(near, np.int64).reshape(-1, 2)
    some = [paths[position] for position in chosen]
    return find_copies(dataset, some, runner=LocalRunner(1), hash_candidates=named)


def known_pairs(dataset: Path, paths: list[str]) -> set[tuple[int, int]]:
    """Return the pairs of positions whose evidence is on disk."""
    sha256s = sorted(map(sha256_of, paths))
    first_P, second_P = np.triu_indices(len(sha256s), 1)
    every_P2 = np.stack([first_P, second_P], axis=1)
    done_P, _ = read_verified(verified_files(dataset), sha256s, every_P2, 0)
    place = {sha256_of(path): at for at, path in enumerate(paths)}
    named = ([place[sha256s[at]] for at in pair] for pair in every_P2[done_P].tolist())
    return {(min(pair), max(pair)) for pair in named}


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(st.sets(st.integers(0, 8), min_size=1), min_size=2, max_size=4),
    sweeping=st.booleans(),
)
def test_increments_and_removals_end_at_the_search_from_nothing(
    made: tuple[Path, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    counted: Counted,
    steps: list[set[int]],
    sweeping: bool,
) -> None:
    full, paths = made
    step_by_step, at_once = (tmp_path_factory.mktemp("steps") / name for name in ("a", "b"))
    for dataset in (step_by_step, at_once):
        shutil.copytree(full, dataset)
        shutil.rmtree(verified_folder(dataset))
    for chosen in map(sorted, steps):
        before, counted.calls = known_pairs(step_by_step, paths), 0
        found = search(step_by_step, paths, chosen)
        after = known_pairs(step_by_step, paths)
        assert counted.calls == len(after - before)
        assert before <= after
        if sweeping:
            keep_only(step_by_step, [sha256_of(paths[position]) for position in chosen])
            kept = known_pairs(step_by_step, paths)
            assert kept == {pair for pair in after if set(pair) <= set(chosen)}
            assert len(verified_files(step_by_step)) <= 1
    assert found == search(at_once, paths, sorted(steps[-1]))


def test_a_second_search_verifies_nothing(
    made: tuple[Path, list[str]], tmp_path: Path, counted: Counted
) -> None:
    dataset, paths = Path(shutil.copytree(made[0], tmp_path / "data")), made[1]
    everything = list(range(len(paths)))
    found = search(dataset, paths, everything)
    counted.calls = 0
    assert search(dataset, paths, everything) == found
    keep_stored(dataset)
    assert search(dataset, paths[::-1], everything) != []
    assert counted.calls <= len(NEAR)  # the positions of NEAR name other pairs now


def test_another_acceptance_verifies_anew(
    made: tuple[Path, list[str]],
    tmp_path: Path,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset, paths = Path(shutil.copytree(made[0], tmp_path / "data")), made[1]
    everything, old = list(range(len(paths))), verified_folder(dataset)
    monkeypatch.setitem(acceptance.RANGES, "tone", (0.1, 1.0))
    assert verified_files(dataset) == []
    search(dataset, paths, everything)
    assert counted.calls > 0
    keep_stored(dataset)
    assert not old.exists()
    assert verified_folder(dataset).is_dir()


def test_a_take_down_leaves_no_evidence_of_the_image(
    made: tuple[Path, list[str]], tmp_path: Path
) -> None:
    dataset, paths = Path(shutil.copytree(made[0], tmp_path / "data")), made[1]
    before = known_pairs(dataset, paths)
    assert (0, 6) in before
    (dataset / paths[6]).unlink()
    keep_stored(dataset)
    assert known_pairs(dataset, paths) == {pair for pair in before if 6 not in pair}
    keep_only(dataset, [])
    assert known_pairs(dataset, paths) == set()


def test_pairs_that_stand_twice_are_read_once(tmp_path: Path) -> None:
    names = [letter * 64 for letter in "abc"]
    values_PV = np.full((2, len(VALUES)), 0.75)
    values_PV[1, 0] = 0.25
    files = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    for file in files:
        write_verified(file, [(names[0], names[2]), (names[1], names[2])], values_PV)
    wanted_P2 = np.array([[0, 1], [0, 2], [1, 2]])
    done_P, rows_PV = read_verified(files, names, wanted_P2, 0.5)
    assert done_P.tolist() == [False, True, True]
    assert rows_PV.tolist() == [[0, 2, *[0.75] * len(VALUES)]]
    done_P, _ = read_verified(files, names[1:], np.array([[0, 1]]), 0.5)
    assert done_P.tolist() == [True]


def test_many_small_files_and_a_large_one_read_alike(
    made: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, paths = Path(shutil.copytree(made[0], tmp_path / "data")), made[1]
    before = known_pairs(dataset, paths)
    monkeypatch.setattr(verified, "_BATCH", 2)
    assert known_pairs(dataset, paths) == before
    keep_only(dataset, [sha256_of(path) for path in paths[1:]])
    assert known_pairs(dataset, paths) == {pair for pair in before if 0 not in pair}


def test_the_evidence_is_that_of_its_version() -> None:
    """Where this fails the evidence changed: count `verify.VERSION` up, and write the new values.

    Otherwise a dataset that was built before would mix old evidence with new.
    """
    image = painted(0)
    first, second = describe(grey(image)), describe(grey(np.ascontiguousarray(image[8:, 10:])))
    if first.digest > second.digest:
        first, second = second, first
    (best, *_) = sorted(evidence_of(first, second), key=lambda one: -one.model.inliers)
    assert best.features_F.tolist() == pytest.approx(OF_VERSION_3, abs=0.05)


OF_VERSION_3 = [
    2.72,
    3.41,
    0.78,
    0.89,
    0.93,
    0.88,
    0.99,
    0.79,
    0.85,
    0.96,
    1.0,
    1.0,
    1.0,
    -3.15,
    0.94,
    0.99,
]

KILLED = """
import sys
from pathlib import Path
from skindx.data.copies import find
from skindx.data.copies.find import find_copies
from skindx.workers.task_runner import LocalRunner
find.PART_PAIRS = 1
find_copies(Path(sys.argv[1]), sys.argv[2:], runner=LocalRunner(1))
"""


@pytest.mark.timeout(120)
def test_a_killed_search_leaves_its_pairs_to_one_over_other_images(
    made: tuple[Path, list[str]], tmp_path: Path, counted: Counted
) -> None:
    dataset, paths = Path(shutil.copytree(made[0], tmp_path / "data")), made[1]
    shutil.rmtree(verified_folder(dataset))
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(dataset), *paths])
    while not verified_files(dataset) and process.poll() is None:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    there = known_pairs(dataset, paths)
    assert there
    fewer = paths[:-1]
    found = find_copies(dataset, fewer, runner=LocalRunner(1))
    assert found == find_copies(made[0], fewer, runner=LocalRunner(1))
    both = {pair for pair in there if max(pair) < len(fewer)}
    assert counted.calls == len(known_pairs(dataset, fewer)) - len(both)
