"""A scan from files to lesions: the same answer whoever works on it, whatever dies meanwhile."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spots
import zarr
from spots import Spot, photo_with, save
from whole_photo import ThisProcess

from skindx.core.errors import UserError
from skindx.scan.scan_run import run_scan, run_worker
from skindx.scan.tile_search import ScanSettings
from skindx.scan.work import worker_processes
from skindx.scan.work.scan_driver import Scanned
from skindx.scan.work.scan_worker import DATABASE, WORK, ScanPlan, ScanTask, ScanTaskRunner
from skindx.scan.work.worker_processes import LocalWorkers

SPOTS: list[Spot] = [
    (48, 48, 9),  # on a corner of four tiles
    (96, 120, 5),
    (200, 60, 14),
    (310, 210, 30),  # larger than what tiles share: whole at a coarser scale alone
    (150, 250, 7),
    (330, 40, 4),
]
WORKER = Path(__file__).parents[1] / "support/spot_worker.py"
SETTINGS = ScanSettings(score_map=True, batch=4, least_side=4)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a photo with spots; its left fifth shows green cloth."""
    pixels = photo_with(SPOTS, 400, 300)
    pixels = np.concatenate([np.full((300, 100, 3), (50, 120, 100), np.uint8), pixels], axis=1)
    return save(pixels, tmp_path_factory.mktemp("photo") / "back.png")


def here(poison: str = "") -> Any:
    return partial(ThisProcess, make_runner=partial(Doer, poison=poison))


class Doer(ScanTaskRunner):
    """Finds spots; fails at a task whose key contains `poison`."""

    def __init__(self, folder: Path, poison: str = "") -> None:
        super().__init__(folder, load=spots.load)
        self._poison = poison

    def do(self, task: ScanTask) -> dict[str, Any]:
        """Do it, or fail."""
        _, number = self._poison.split(":") if self._poison else ("", "-1")
        here = task.level == 0 and self._poison.startswith(task.kind)
        if here and task.first <= int(number) < task.last:
            raise RuntimeError("poisoned")
        return super().do(task)


@pytest.fixture(scope="module")
def alone(photo: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of one process that nothing disturbed."""
    out = tmp_path_factory.mktemp("alone") / "out"
    scan(photo, tiny_bundle, out)
    return out


def scan(photo: Path, bundle: Path, out: Path, **other: Any) -> Scanned:
    return run_scan([photo], bundle, out, SETTINGS, **{"make_workers": here(), **other})


def lesions(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "lesions.json").read_text())
    return found


def assert_same(out: Path, alone: Path) -> None:
    """The same boxes, and probabilities and map to 1e-5; nothing twice, nothing lost."""
    (mine,), (known,) = lesions(out)["photos"], lesions(alone)["photos"]
    assert [lesion["box"] for lesion in mine["lesions"]] == [x["box"] for x in known["lesions"]]
    for a, b in zip(mine["lesions"], known["lesions"], strict=True):
        assert list(a["probabilities"].values()) == pytest.approx(
            list(b["probabilities"].values()), abs=1e-5
        )
    assert {**mine, "lesions": 0} == {**known, "lesions": 0}
    maps = [zarr.open_array(folder / "map-0.zarr" / "scores")[:] for folder in (out, alone)]
    np.testing.assert_allclose(*maps, atol=1e-5)
    assert not (out / WORK).exists()


def test_every_spot_is_found_once_and_diagnosed(alone: Path) -> None:
    (found,) = lesions(alone)["photos"]
    assert (found["width"], found["height"]) == (500, 300)
    assert 0 < found["tiles_without_skin"] < found["tiles"]
    assert found["failed_tiles"] == 0
    boxes = np.array([lesion["box"] for lesion in found["lesions"]])
    assert len(boxes) == len(SPOTS)
    for x, y, radius in SPOTS:
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        nearest = np.hypot(*(centres - (x + 100, y)).T).argmin()
        assert np.hypot(*(centres[nearest] - (x + 100, y))) < 3
        assert boxes[nearest, 2] - boxes[nearest, 0] == pytest.approx(2 * radius, rel=0.3)
    for lesion in found["lesions"]:
        assert sum(lesion["probabilities"].values()) == pytest.approx(1)
        assert lesion["colour_lab"][0] < -20  # darker than the skin around
    scores = zarr.open_array(alone / "map-0.zarr" / "scores")[:]
    assert scores.shape == (38, 63)
    assert scores[6, 18] > 0.5 > scores[:, :12].max()


def test_scans_that_cannot_be_are_refused_and_leave_nothing(
    tmp_path: Path, photo: Path, tiny_bundle: Path
) -> None:
    cloth = save(np.full((300, 300, 3), (50, 120, 100), np.uint8), tmp_path / "cloth.png")
    large = save(photo_with([(150, 150, 90)], 300, 300), tmp_path / "large.png")
    broken = tmp_path / "broken.png"
    broken.write_bytes(photo.read_bytes()[:5000])
    out = tmp_path / "out"
    for files, words in (
        ([photo, cloth], "cloth.png shows no skin"),
        ([large], "skindx diagnose"),
        ([photo, broken], "damaged or cut short"),
        ([tmp_path / "none.png"], "does not exist"),
    ):
        with pytest.raises(UserError, match=words):
            run_scan(files, tiny_bundle, out, ScanSettings(), make_workers=here())
        assert not out.exists()
    with pytest.raises(UserError, match="--queue URL"):
        run_scan([photo], tiny_bundle, out, ScanSettings(), workers=0)
    with pytest.raises(UserError, match="no running scan"):
        run_worker(str(tmp_path), "", 0, "cpu")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="has other files"):
        scan(photo, tiny_bundle, tmp_path / "full")


def test_a_poisoned_tile_is_set_aside_alone_and_named(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path
) -> None:
    scanned = scan(photo, tiny_bundle, tmp_path / "out", make_workers=here("tiles:11"))
    (found,) = lesions(tmp_path / "out")["photos"]
    (sentence,) = scanned.problems
    assert "Tile 11 of scale 0" in sentence
    assert found["failed_tiles"] == 1
    known = {tuple(lesion["box"]) for lesion in lesions(alone)["photos"][0]["lesions"]}
    assert len(known & {tuple(lesion["box"]) for lesion in found["lesions"]}) >= len(SPOTS) - 2


def test_a_poisoned_lesion_has_no_diagnosis_and_the_others_do(
    tmp_path: Path, photo: Path, tiny_bundle: Path
) -> None:
    scanned = scan(photo, tiny_bundle, tmp_path / "out", make_workers=here("lesions:2"))
    assert "has no diagnosis" in scanned.problems[0]
    assert len(scanned.photos[0].lesions) == len(SPOTS) - 1


def test_a_scan_goes_on_and_no_other_takes_its_place(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, done = tmp_path / "out", []

    class Interrupted(Doer):
        def do(self, task: ScanTask) -> dict[str, Any]:
            if len(done) == 3:
                raise KeyboardInterrupt
            done.append(task.key)
            return super().do(task)

    with pytest.raises(KeyboardInterrupt):
        scan(photo, tiny_bundle, out, make_workers=partial(ThisProcess, make_runner=Interrupted))
    with pytest.raises(UserError, match="other photos, or with another bundle"):
        run_scan([photo], tiny_bundle, out, ScanSettings(margin=2), make_workers=here())
    with monkeypatch.context() as patch:
        patch.setattr(worker_processes, "__version__", "9.9")
        with pytest.raises(UserError, match="started with skindx"):
            scan(photo, tiny_bundle, out)
    again: list[str] = []

    class Noted(Doer):
        def do(self, task: ScanTask) -> dict[str, Any]:
            again.append(task.key)
            return super().do(task)

    scan(photo, tiny_bundle, out, make_workers=partial(ThisProcess, make_runner=Noted))
    assert not set(again) & set(done)
    assert_same(out, alone)


def workers(where: Path | str, token: str, *, count: int, how: str) -> LocalWorkers:
    command = (sys.executable, str(WORKER), str(where), token, how)
    return LocalWorkers(command, count)


def test_a_killed_worker_changes_nothing(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path
) -> None:
    """Its first answer is written and not acknowledged when kill -9 comes; another does it."""
    crew = partial(workers, count=1, how=f"die:1:{tmp_path}")
    scanned = scan(photo, tiny_bundle, tmp_path / "out", make_workers=crew)
    assert len(list(tmp_path.glob("died-*"))) == 1
    assert not scanned.problems
    assert_same(tmp_path / "out", alone)


@pytest.mark.long
@pytest.mark.parametrize("deaths", [0, 6, 12])
def test_four_workers_half_of_them_killed(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path, deaths: int
) -> None:
    crew = partial(workers, count=4, how=f"die:{deaths}:{tmp_path}")
    scan(photo, tiny_bundle, tmp_path / "out", make_workers=crew)
    assert len(list(tmp_path.glob("died-*"))) == deaths
    assert_same(tmp_path / "out", alone)


@pytest.fixture
def killed_driver(tmp_path: Path, photo: Path, tiny_bundle: Path) -> Path:
    """Return the folder of a scan whose driver and workers were killed at work."""
    out = tmp_path / "out"
    command = [sys.executable, str(WORKER), "drive", str(photo), str(tiny_bundle), str(out)]
    with subprocess.Popen(command, start_new_session=True) as driver:
        try:
            while driver.poll() is None and not list(tmp_path.glob("**/map-0/*.npy")):
                pass
        finally:
            driver.send_signal(signal.SIGKILL)
    return out


@pytest.mark.long
def test_a_killed_driver_is_followed_by_the_same_command(
    photo: Path, tiny_bundle: Path, alone: Path, killed_driver: Path
) -> None:
    assert (killed_driver / WORK / DATABASE).is_file()
    token = ScanPlan.read(killed_driver / WORK).token
    assert token
    scan(photo, tiny_bundle, killed_driver)
    assert_same(killed_driver, alone)


@pytest.mark.long
def test_a_clock_that_is_wrong_by_minutes_changes_nothing(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path
) -> None:
    """Leases are by the database's clock: a worker whose own is wrong keeps its tasks."""
    crew = partial(workers, count=2, how="late:600")
    scan(photo, tiny_bundle, tmp_path / "out", make_workers=crew)
    assert_same(tmp_path / "out", alone)


@pytest.mark.long
def test_a_full_disk_ends_in_a_sentence_and_the_scan_goes_on(
    tmp_path: Path, photo: Path, tiny_bundle: Path, alone: Path
) -> None:
    crew = partial(workers, count=1, how="full")
    with pytest.raises(UserError, match=r"disk of .* is full"):
        scan(photo, tiny_bundle, tmp_path / "out", make_workers=crew)
    scan(photo, tiny_bundle, tmp_path / "out")
    assert_same(tmp_path / "out", alone)
