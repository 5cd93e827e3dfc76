"""`skindx scan` as a user types it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Skindx
from postgresql import server
from spots import photo_with, save
from sqlalchemy import select, update

from skindx.core.errors import UserError
from skindx.scan.outputs.scan_files import LESIONS
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work.scan_worker import WORK, queue_name, work
from skindx.workers.lease_queue import QUEUES, LeaseQueue

WORKER = Path(__file__).parents[1] / "support/spot_worker.py"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return save(photo_with([(150, 150, 12)], 400, 300), tmp_path / "back.png")


def test_mistakes_end_in_a_sentence(skindx: Skindx, tmp_path: Path, photo: Path) -> None:
    out = tmp_path / "out"
    for words, sentence in (
        (("run", str(photo), "--bundle", str(tmp_path), "--out", str(out)), "is not a bundle"),
        (("worker", "--queue", str(tmp_path)), "has no running scan"),
        (("worker", "--queue", "mystery://host/name"), "not a database that can be opened"),
        (
            ("run", str(photo), "-b", str(tmp_path), "-o", str(out), "--set", "tiles=3"),
            "there is no setting 'tiles'",
        ),
    ):
        code, _, errors = skindx("scan", *words)
        assert code == 2, errors
        assert errors.count("\n") == 1
        assert sentence in errors
        assert not out.exists()


def test_a_queue_of_another_version_is_refused(tmp_path: Path) -> None:
    where = tmp_path / "leases.sqlite"
    with LeaseQueue(where, queue_name("token", "1-tiles")) as queue:
        facts = {"folder": str(tmp_path), "lease_s": 60}
        queue.put([], fingerprint="f", version="0.0", facts=facts)
        with pytest.raises(UserError, match=r"started with skindx 0\.0"):
            work(where, patience_s=0)
        with queue.engine.begin() as connection:
            connection.execute(update(QUEUES).values(queue="another program's"))
    assert work(where, patience_s=0) == 0


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.mark.long
def test_workers_join_by_a_database(
    tmp_path: Path, photo: Path, tiny_bundle: Path, postgres: str
) -> None:
    """A driver without workers of its own, and two that find the scan in PostgreSQL."""
    command = [sys.executable, str(WORKER), postgres, "", "sleep"]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    out = tmp_path / "out"
    try:
        scanned = run_scan([photo], tiny_bundle, out, ScanSettings(), workers=0, queue=postgres)
    finally:
        for worker in workers:
            with worker:
                worker.kill()
    assert [len(one.lesions) for one in scanned.photos] == [1]
    assert json.loads((out / LESIONS).read_text())["problems"] == []
    assert not (out / WORK).exists()
    with LeaseQueue(postgres, "") as queue, queue.engine.begin() as connection:
        assert connection.execute(select(QUEUES)).first() is None
