"""Workers of two machines scan a photo by a PostgreSQL on a third; one is lost, one is late."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import wait_for
from postgresql import Site, two_nodes_and_database
from spots import photo_with, save

from skindx.scan.outputs.scan_files import LESIONS
from skindx.scan.work.scan_worker import WORK

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parents[1] / "support"
LEASE_S = 8
_PIPE = subprocess.PIPE
"""A worker of this kind ends with what feeds its standard input."""
_DRIVE = """
import sys
from pathlib import Path
from skindx.scan.scan_run import run_scan
from skindx.scan.tile_search import ScanSettings
photo, bundle, out, queue, lease_s = sys.argv[1:]
found = run_scan(
    [Path(photo)], Path(bundle), Path(out), ScanSettings(tile=128, batch=1), workers=0,
    queue=queue, lease_s=float(lease_s),
)
print("lesions", len(found.photos[0].lesions))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with two_nodes_and_database(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def test_workers_of_two_machines(site: Site, tiny_bundle: Path, tmp_path: Path) -> None:
    places = [(150.0 + 300 * (n % 6), 150.0 + 300 * (n // 6), 12.0) for n in range(24)]
    photo = save(photo_with(places, 1800, 1200), tmp_path / "back.png")
    python = f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": python, "OMP_NUM_THREADS": "1"}
    stays, goes = site.nodes
    worker = [sys.executable, SUPPORT / "spot_worker.py", site.url, "", "sleep"]
    drive = [sys.executable, "-c", _DRIVE, photo, tiny_bundle, tmp_path / "out", site.url, LEASE_S]

    def held() -> bool:
        assert driver.poll() is None, driver.communicate()[0]
        assert lost.poll() is None, lost.communicate()[0]
        return bool(
            site.ask("select to_regclass('lease_tasks')")
            and site.ask("select key from lease_tasks where state = 'taken'")
        )

    with (
        stays.start(drive, environment) as driver,
        goes.start(worker, environment, _PIPE) as lost,
    ):
        try:
            wait_for("the only worker has a task", 120, held, 0.02)
            goes.off()
            lost.wait()
            late = stays.start(worker, environment, _PIPE)
            goes.on()
            later = goes.start(worker, environment, _PIPE)
            output, _ = driver.communicate(timeout=300)
        finally:
            for node in site.nodes:
                node.off()
                node.on()
    for process in (late, later):
        process.communicate()
    assert driver.returncode == 0, output
    assert output.split()[-2:] == ["lesions", "24"]
    assert (tmp_path / "out" / LESIONS).is_file()
    assert not (tmp_path / "out" / WORK).exists()
    assert site.ask("select count(*) from lease_tasks") == ["0"]
