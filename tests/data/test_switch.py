"""All tables of a dataset change together, whenever a kill comes."""

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from forks import forked

from skindx.data.layout import READY, recover, transaction
from skindx.data.manifest import read_issues, write_issues


@pytest.mark.parametrize(("scenario", "least"), [("rebuild", 20), ("take_down", 15)])
@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.long)])
def test_killed_before_a_change_of_the_disk(
    tmp_path: Path, scenario: str, least: int, every: int
) -> None:
    """Each fortieth change in the suite, every one in the long run."""

    def kills() -> None:
        import kill_scenarios  # which replaces parts of the screening: only in this fork

        changes = getattr(kill_scenarios, scenario)(tmp_path, every)
        (tmp_path / "changes").write_text(changes.split()[0])

    assert forked(kills) == [0]
    assert int((tmp_path / "changes").read_text()) >= least


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
