"""What a build needs of its runner, without a cluster: shards, addresses."""

import importlib.util
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from network_guard import run_guarded
from paint_images import paint, save

from skindx.core.errors import JobError, UserError
from skindx.data.screening import screen as shards
from skindx.data.screening.screen import ScreenSettings, screen
from skindx.workers.task_runner import LocalRunner, RayRunner, compare_nodes, connected
from skindx.workers.task_runner import NodeFacts as WorkerAnswer


class Several(LocalRunner):
    """Threads as workers; a task whose arguments hold a poisoned path is lost."""

    def __init__(self, workers: int, poisoned: Path | None = None) -> None:
        super().__init__(1)
        self.workers = workers
        self.poisoned = poisoned
        self.asked: list[Any] = []

    def run(
        self,
        function: Callable[..., None],
        tasks: Any,
        on_done: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        self.asked += tasks
        lost = [task for task in tasks if self.poisoned and str(self.poisoned) in repr(task)]
        alive = [task for task in tasks if task not in lost]
        with ThreadPoolExecutor(self.workers) as pool:
            for task, _ in zip(alive, pool.map(lambda t: function(*t), alive), strict=True):
                if on_done:
                    on_done(task)
        return lost


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of ten images, the eighth damaged, in a folder with shards of three."""
    monkeypatch.setattr(shards, "SHARD_PICTURES", 3)
    paths = [f"store/{n}.jpg" for n in range(10)]
    for n, path in enumerate(paths):
        save(tmp_path / path, paint(n))
    (tmp_path / paths[7]).write_bytes((tmp_path / paths[7]).read_bytes()[:-300])
    return paths


def verdicts(folder: Path, paths: list[str], runner: LocalRunner, **options: Any) -> list[Any]:
    screened = screen(folder, paths, ScreenSettings(), ("difference",), runner=runner, **options)
    return [(image.reason, image.width, image.codes_KO.tolist()) for image in screened]


def test_shards_give_what_screening_at_once_gives_and_are_not_made_again(
    tmp_path: Path, store: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[int, int]] = []
    first = verdicts(tmp_path, store, Several(2), on_progress=lambda *c: reported.append(c))
    assert reported == [(0, 10), (3, 10), (6, 10), (9, 10), (10, 10)]
    assert [n for n, verdict in enumerate(first) if verdict[0]] == [7]
    again = Several(1)
    assert verdicts(tmp_path, store, again) == first
    assert again.asked == []
    next(iter((tmp_path / shards.SHARDS).glob("*.parquet"))).unlink()
    assert verdicts(tmp_path, store, again) == first
    assert len(again.asked) == 1
    monkeypatch.setattr(shards, "SHARD_PICTURES", 100)
    assert verdicts(tmp_path, store, again) == first


def test_an_image_that_ends_its_worker_costs_itself_alone(tmp_path: Path, store: list[str]) -> None:
    sound = verdicts(tmp_path, store, LocalRunner(1))
    shards.remove_shards(tmp_path)
    reported: list[tuple[int, int]] = []
    runner = Several(2, poisoned=Path(store[4]))
    found = verdicts(tmp_path, store, runner, on_progress=lambda *c: reported.append(c))
    assert found[4] == ("decode-crash", 0, [])
    assert found[:4] + found[5:] == sound[:4] + sound[5:]
    assert reported[-1] == (10, 10)


OWN = WorkerAnswer("here", "token", {"skindx": "1.0", "numpy": "2.0"})


def test_a_worker_that_cannot_do_the_work_is_one_sentence() -> None:
    folder = Path("/shared/data")
    compare_nodes(OWN, [replace(OWN, host="there")], folder)
    blind = replace(OWN, host="there", read="")
    with pytest.raises(UserError, match=r"cannot see /shared/data; set --out"):
        compare_nodes(OWN, [OWN, blind], folder)
    old = replace(blind, versions={"skindx": "0.9", "numpy": "2.0"})
    with pytest.raises(
        UserError, match=r"machine there has skindx 0\.9, but this machine has 1\.0;"
    ):
        compare_nodes(OWN, [OWN, old], folder)
    bare = replace(OWN, versions={"skindx": "1.0", "numpy": ""})
    with pytest.raises(UserError, match=r"has numpy \(none\), but this machine has 2\.0"):
        compare_nodes(OWN, [bare], folder)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("local", "must be auto, HOST:PORT or ray://HOST:PORT"),
        ("http://host:1", "must be auto"),
        ("127.0.0.1:1", "nothing answers at this address .*refused.*`ray start --head` printed"),
        ("ray://127.0.0.1:1", "nothing answers at this address"),
    ],
)
def test_a_wrong_address_is_one_sentence(address: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--cluster '?{re.escape(address)}'?.*{said}"):
        connected(address, tmp_path / "out").__enter__()
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else real(name)
    )
    with pytest.raises(UserError, match=r"install .*\[cluster\]'"):
        connected("auto", tmp_path).__enter__()


def test_a_cluster_without_any_worker_left_is_reported_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    head = {"NodeID": "h", "Alive": True, "Resources": {}}
    worker = {"NodeID": "w", "Alive": True, "Resources": {"CPU": 2.0}}
    looks = [[head, worker], [head, {**worker, "Alive": False}]]
    monkeypatch.setattr(
        ray, "remote", lambda **_: lambda _: SimpleNamespace(remote=lambda *_: object())
    )
    monkeypatch.setattr(ray, "wait", lambda refs, **_: ([], refs))
    monkeypatch.setattr(ray, "nodes", lambda: looks.pop(0))
    with pytest.raises(JobError, match=r"has a core left; start one"):
        RayRunner(workers=1, driver_workers=1).run(print, [("task",)])
    assert not looks


USAGE = """
from skindx.core.machine import go_offline
go_offline()
from ray._common.usage.usage_lib import usage_stats_enabled
print(usage_stats_enabled())
"""


def test_ray_does_not_report_its_usage(tmp_path: Path) -> None:
    done = run_guarded(["-c", USAGE], tmp_path)
    assert (done.stdout, done.calls) == ("False\n", []), done.stderr
