"""A build on a Ray cluster of two workers: the same bytes as on this machine, whatever dies."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from paint_images import paint, save
from ray_cluster import RayCluster, ray_cluster

from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.copies import copy_candidates, hash_links
from skindx.data.copies import describe as copies_shards
from skindx.data.copies.find import find_copies
from skindx.data.layout import store_bytes
from skindx.data.manifest import read_issues, read_manifest, write_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.screening import screen
from skindx.workers.task_runner import ATTEMPTS, LocalRunner, connected

IMAGES = 24
SHARD = 6

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with ray_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def settings(tmp_path: Path) -> BuildSettings:
    """Return the settings for a folder of two classes with duplicates and a damaged file."""
    root = tmp_path / "pictures"
    for n in range(IMAGES):
        label = "acne" if n % 2 else "wart"
        # Every eighth image is an earlier one at another quality.
        save(root / label / f"{n}.jpg", paint(n if n % 8 else 1000 + n // 16), quality=50 + n)
    damaged = (root / "acne" / "1.jpg").read_bytes()[:-300]
    (root / "acne" / "damaged.jpg").write_bytes(damaged)
    return load_build_settings(root, ["workers=1"])


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut few images into many tasks."""
    monkeypatch.setattr(screen, "SHARD_PICTURES", SHARD)
    monkeypatch.setattr(hash_links, "CHUNK_CODES", 16)


def content(out: Path) -> dict[str, bytes]:
    """Return the bytes of all files, the manifest's without the time when an image was read."""
    write_manifest(out, [replace(record, retrieved="") for record in read_manifest(out)])
    files = (path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def test_a_cluster_that_loses_a_worker_and_a_node_makes_the_same_dataset(
    cluster: RayCluster, settings: BuildSettings, tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(stage: str, done: int, total: int) -> None:
        if stage == "screen" and done and len(killed) < 2:
            until = time.monotonic() + 5  # on a slow machine the next task may not have begun
            while not (found := cluster.kill_workers()) and time.monotonic() < until:
                time.sleep(0.02)
            killed.append(found)
            if len(killed) == 2:
                cluster.kill_node()

    build(settings, tmp_path / "embedded")
    summary = build(settings, tmp_path / "cluster", progress=kill, cluster=cluster.address)
    assert sum(killed) > 0, "no worker was at work"
    assert summary.issues["near-duplicate"] == IMAGES // 16
    embedded = content(tmp_path / "embedded")
    assert len(embedded) > IMAGES / 2
    assert content(tmp_path / "cluster") == embedded


@pytest.mark.long
def test_an_image_that_kills_its_decoder_is_one_issue(
    cluster: RayCluster, settings: BuildSettings, tmp_path: Path
) -> None:
    build(settings, tmp_path / "without")
    root = tmp_path / "pictures"
    poison = save(root / "acne" / "poison.jpg", paint(77))
    with poison.open("ab") as file:
        file.write(b"POISON")
    build(settings, tmp_path / "with", cluster=cluster.address)
    without, with_poison = content(tmp_path / "without"), content(tmp_path / "with")
    assert with_poison["manifest.parquet"] == without["manifest.parquet"]
    issues = [i for i in read_issues(tmp_path / "with") if i.url == "acne/poison.jpg"]
    assert [issue.reason for issue in issues] == ["decode-crash"]
    halvings = SHARD.bit_length()
    assert len(cluster.poison_log.read_text().splitlines()) <= ATTEMPTS * (halvings + 1)


@pytest.mark.long
def test_a_cluster_finds_the_copies_that_this_machine_finds(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies_shards, "SHARD_IMAGES", 8)
    monkeypatch.setattr(copy_candidates, "CHUNK_IMAGES", 12)
    found = []
    for name in ("alone", "cluster"):
        painted = [paint(n) for n in range(IMAGES // 2)]
        files = [save(tmp_path / "painted" / f"{n}.jpg", image) for n, image in enumerate(painted)]
        files += [save(tmp_path / "painted" / f"{n}-9.jpg", painted[n][9:, 9:]) for n in (0, 5)]
        paths = [store_bytes(tmp_path / name, file.read_bytes(), ".jpg")[1] for file in files]
        if name == "alone":
            found.append(find_copies(tmp_path / name, paths, runner=LocalRunner(1)))
            continue
        with connected(cluster.address, tmp_path / name) as runner:
            found.append(find_copies(tmp_path / name, paths, runner=runner))
    assert found[0] == found[1]
    assert (5, IMAGES // 2 + 1) in {(copy.first, copy.second) for copy in found[0]}


BUILD = """
import sys
from pathlib import Path
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.screening import screen
screen.SHARD_PICTURES = int(sys.argv[4])
build(load_build_settings(Path(sys.argv[1]), ["workers=1"]), Path(sys.argv[2]), cluster=sys.argv[3])
"""


@pytest.mark.long
def test_a_killed_driver_goes_on_with_the_shards_that_are_finished(
    cluster: RayCluster, settings: BuildSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = [str(tmp_path / "pictures"), str(out), cluster.address, str(SHARD)]
    driver = subprocess.Popen([sys.executable, "-c", BUILD, *arguments])
    finished: dict[Path, int] = {}
    while not finished:
        assert driver.poll() is None
        time.sleep(0.01)
        found = (out / screen.SHARDS).glob("screened-*.parquet")
        finished = {path: path.stat().st_mtime_ns for path in found}
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    monkeypatch.setattr("skindx.data.build.build_dataset.remove_shards", lambda out: None)
    build(settings, out, cluster=cluster.address)
    after = {path: path.stat().st_mtime_ns for path in finished}
    assert after == finished
    build(settings, tmp_path / "embedded")
    assert content(out)["manifest.parquet"] == content(tmp_path / "embedded")["manifest.parquet"]
