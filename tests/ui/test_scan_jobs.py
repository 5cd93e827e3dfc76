"""The line of scans: bounds, retention, deletion, processes that die; no network is asked."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.ui.scans.scan_job import ScanJob, ScanOrder, ScanRefused, ScanServing
from skindx.ui.scans.scan_jobs import ScanBundle, ScanJobs
from skindx.ui.scans.scan_process import sentence_of

DONE = """
print('{"stage": "1-tiles", "done": 3, "known": 8}', flush=True)
print('{"ended": true}', flush=True)
"""
FOR_EVER = """
import pathlib, time
pathlib.Path(sys.argv[1], "began").touch()
while True: time.sleep(0.05)
"""
DIES = """
import os, pathlib, signal
tries = pathlib.Path(sys.argv[1], "tries")
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) < COUNT: os.kill(os.getpid(), signal.SIGKILL)
print('{"ended": true}', flush=True)
"""


class Counted(list[tuple[str, str]]):
    """What was counted."""

    def scan_ended(self, way: str, outcome: str, seconds: float) -> None:
        """Note it."""
        self.append((way, outcome))


def run(
    folder: Path,
    code: str,
    use: Callable[[ScanJobs], Awaitable[None]],
    **settings: float,
) -> Counted:
    """Use the scans of a server whose processes run `code`; its folder is empty afterwards."""
    counted = Counted()

    async def used() -> None:
        jobs = ScanJobs(
            folder,
            ScanBundle(folder / "bundle", "0" * 64),
            ScanServing.model_validate(settings),
            counted,
            (sys.executable, "-c", f"import sys\n{code}"),
        )
        async with jobs:
            await use(jobs)

    asyncio.run(used())
    assert list(folder.iterdir()) == []
    return counted


async def submit(jobs: ScanJobs, client: str = "here", owner: str = "") -> ScanJob:
    return await jobs.submit((b"a photo",), client=client, owner=owner, way="api")


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_a_scan_is_done_and_kept_for_its_time_only(tmp_path: Path) -> None:
    async def use(jobs: ScanJobs) -> None:
        job = await submit(jobs, owner="ann")
        assert job.folder.stat().st_mode & 0o777 == 0o700
        (photo,) = (job.folder / "photos").iterdir()
        assert (photo.stat().st_mode & 0o777, photo.read_bytes()) == (0o600, b"a photo")
        assert ScanOrder.read(job.folder).photos == 1
        assert len(job.id) >= 32
        await until(lambda: job.over)
        assert (job.state, job.tiles_done, job.tiles_known) == ("done", 3, 8)
        assert jobs.get(job.id, "ann") is job
        assert jobs.get(job.id, "ben") is None
        assert jobs.get("other", "ann") is None
        await until(lambda: jobs.get(job.id, "ann") is None)
        await until(lambda: not job.folder.exists())

    assert run(tmp_path, DONE, use, keep_s=2) == [("api", "done")]


def test_more_than_may_wait_is_refused_and_told_when_to_try_again(tmp_path: Path) -> None:
    async def use(jobs: ScanJobs) -> None:
        first = await submit(jobs)
        await until((first.folder / "began").exists)
        second = await submit(jobs)
        assert (jobs.running, jobs.waiting, jobs.before(second)) == (1, 1, 1)
        with pytest.raises(ScanRefused, match="not done yet") as refused:
            await submit(jobs)
        assert (refused.value.status, refused.value.retry_after_s) == (429, 30)
        await submit(jobs, "there")
        with pytest.raises(ScanRefused, match="Too many scans wait") as refused:
            await submit(jobs, "elsewhere")
        assert refused.value.status == 503
        # Deleting one at work makes room, and the next begins.
        await jobs.delete(first)
        assert not first.folder.exists()
        await until(lambda: second.state == "running")

    counted = run(tmp_path, FOR_EVER, use, waiting=2)
    assert counted == [("api", "busy"), ("api", "busy"), ("api", "deleted")]


async def done(jobs: ScanJobs, client: str = "here") -> ScanJob:
    job = await submit(jobs, client)
    await until(lambda: job.over and not (job.work and not job.work.done()))
    return job


def test_results_that_nobody_deletes_give_way_to_newer_ones(tmp_path: Path) -> None:
    async def use(jobs: ScanJobs) -> None:
        first, second, third = [await done(jobs) for _ in range(3)]
        assert [jobs.get(job.id, "") for job in (first, second, third)] == [None, second, third]
        assert not first.folder.exists()
        # Another client's oldest goes only where the house is full.
        fourth = await done(jobs, "there")
        assert jobs.get(second.id, "") is second
        fifth = await done(jobs, "elsewhere")
        held = [jobs.get(job.id, "") for job in (second, third, fourth, fifth)]
        assert held == [None, third, fourth, fifth]

    run(tmp_path, DONE, use, kept=3, kept_per_client=2)


def test_failed_scans_take_no_result_s_place(tmp_path: Path) -> None:
    fails = 'import os; print(\'{"error": "no."}\' if os.path.exists(FAIL) else ENDED)'
    fails = fails.replace("FAIL", repr(str(tmp_path / "bad")))
    fails = fails.replace("ENDED", "'{\"ended\": true}'")

    async def use(jobs: ScanJobs) -> None:
        good = await done(jobs)
        (tmp_path / "bad").touch()
        failed = [await done(jobs) for _ in range(5)]
        assert [job.state for job in failed] == ["failed"] * 5
        (tmp_path / "bad").unlink()
        assert jobs.get(good.id, "") is good
        # The last ones are remembered, so that whoever asks reads why.
        assert [jobs.get(job.id, "") is job for job in failed] == [False] * 3 + [True] * 2
        assert (await done(jobs)).state == "done"

    run(tmp_path, fails, use, kept=2)


def test_a_killed_process_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    async def use(jobs: ScanJobs) -> None:
        job = await submit(jobs)
        await until(lambda: job.over)
        assert job.state == "done"
        assert (job.folder / "tries").read_text() == "xxx"

    assert run(tmp_path, DIES.replace("COUNT", "3"), use) == [("api", "done")]

    async def fails(jobs: ScanJobs) -> None:
        job = await submit(jobs)
        await until(lambda: job.over and not job.folder.exists())
        assert job.state == "failed"
        assert job.error.endswith(".")
        assert jobs.get(job.id, "") is job  # whoever asks is told so

    assert run(tmp_path, DIES.replace("COUNT", "9"), fails) == [("api", "failed")]


def test_a_scan_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    async def use(jobs: ScanJobs) -> None:
        job = await submit(jobs)
        await until(lambda: job.over)
        assert job.error.startswith("The scan took longer")

    assert run(tmp_path, FOR_EVER, use, longest_s=0.2) == [("api", "failed")]


def test_what_a_person_reads_names_no_path_and_no_command(tmp_path: Path) -> None:
    said = sentence_of(
        UserError(
            f"{tmp_path}/photos/photo 1 cannot be scanned. Use `skindx diagnose` for a photo of "
            "one lesion."
        ),
        tmp_path,
    )
    assert said == "photo 1 cannot be scanned. Ask for a diagnosis of this photo instead."
