"""All tables of a dataset change together, whenever a kill comes."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from skindx.data.layout import READY, recover, transaction
from skindx.data.manifest import read_issues, write_issues

SUPPORT = Path(__file__).parents[1] / "support"
PATHS = (SUPPORT.parents[1], SUPPORT)


@pytest.mark.parametrize(("scenario", "least"), [("rebuild", 20), ("take_down", 15)])
@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.long)])
def test_killed_before_a_change_of_the_disk(
    tmp_path: Path, scenario: str, least: int, every: int
) -> None:
    """Each fifteenth change in the suite, every one in the long run."""
    done = subprocess.run(
        [sys.executable, SUPPORT / "kill_everywhere.py", scenario, tmp_path, str(every)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) >= least


def fill(folder: Path, text: str) -> None:
    with transaction(folder) as staging:
        for name in "abc":
            (staging / name).write_text(text)


def test_a_block_that_fails_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, "old")
    with suppress(InterruptedError), transaction(tmp_path) as staging:
        (staging / "a").write_text("new")
        raise InterruptedError
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", "old"
    )


def test_the_next_reader_finishes_what_was_begun(tmp_path: Path) -> None:
    write_issues(tmp_path, [])
    (tmp_path / READY).mkdir()
    (tmp_path / "issues.parquet").rename(tmp_path / READY / "issues.parquet")
    assert read_issues(tmp_path) == []
    assert not (tmp_path / READY).exists()


def test_many_readers_may_finish_it_at_once(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def finish(start: threading.Barrier) -> None:
        start.wait()
        try:
            recover(tmp_path)
        except BaseException as error:
            problems.append(error)

    for _ in range(20):
        (tmp_path / READY).mkdir()
        for number in range(10):
            (tmp_path / READY / f"{number}").touch()
        start = threading.Barrier(4)
        threads = [threading.Thread(target=finish, args=(start,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recover(tmp_path)
        assert problems == []
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(str, range(10)))
