"""Workers of two machines hop by a PostgreSQL on a third: one joins late, one dies, one leaves."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from machines import Machine, wait_for
from one_process import alone, in_order, recorded
from postgresql import Site, two_nodes_and_database
from ranks import run_ranks

from skindx.training.checkpoint.finished import load_member
from skindx.training.config.run import TrainSettings

pytestmark = [pytest.mark.long, pytest.mark.distributed, pytest.mark.timeout(1500)]

LEASE_S = 15
SETTINGS = {
    "engine": {"accelerator": "cpu", "schedule": "hop", "ranks": 1, "partitions": 2},
    "recipe": {"epochs": 6, "batch": 9},
    "members": [
        {"name": name, "model": "test_resnet", "seed": seed, "preprocess": {"size": 64}}
        for seed, name in enumerate("abc")
    ],
    "loader": {"threads": 1},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with two_nodes_and_database(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def held(site: Site, node: Machine) -> list[str]:
    """Return the units that workers of a machine have at this moment."""
    return site.ask(
        "select t.key from lease_tasks t join lease_workers w on t.worker = w.worker "
        f"where t.state = 'taken' and w.note like '%{node.name}%'"
    )


def losses(site: Site, key: str) -> int:
    return int(site.ask(f"select losses from lease_tasks where key = '{key}'")[0])


def _skindx(node: Machine, *words: object) -> "subprocess.Popen[str]":
    return node.start(
        [sys.executable, "-m", "skindx", *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    )


def _same(run: Path, dataset: Path, settings: TrainSettings) -> dict[str, bool]:
    mesh, same = alone(settings), {}
    for member in settings.members:
        order = recorded(run, member.name)
        expected = in_order(dataset, settings, member.name, order, 2, mesh).state
        found = load_member(run, member.name).state
        same[member.name] = all(found[key].equal(value) for key, value in expected.items())
    return same


def test_workers_come_and_go(site: Site, small_dataset: Path, tmp_path: Path) -> None:
    raw = {**SETTINGS, "engine": {**SETTINGS["engine"], "leases": site.url, "lease_s": LEASE_S}}
    config, run = tmp_path / "hop.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(raw))
    stays, goes = site.nodes
    join = ("train", small_dataset, "--out", run, "--join")
    code, output = goes.run(sys.executable, "-m", "skindx", *join)
    assert (code, output.count("\n")) == (2, 1), output
    assert f"no training with schedule hop or members is running in {run}" in output

    with _skindx(stays, "train", small_dataset, "--config", config, "--out", run) as first:
        wait_for("the first visits are done", 300, lambda: _done(site, first) >= 2)
        with _skindx(goes, *join) as late:
            wait_for("a late worker has a unit", 60, lambda: held(site, goes), 0.02)
            (lost,) = held(site, goes)
            goes.off()
            late.wait()
        wait_for("its lease is lost", LEASE_S + 20, lambda: losses(site, lost) == 1)
        assert first.poll() is None
        goes.on()
        with _skindx(goes, *join) as again:
            wait_for("it works again", 60, lambda: held(site, goes), 0.02)
            (process,) = goes.processes("--join")
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            words, _ = again.communicate(timeout=30)
        assert time.monotonic() - began < LEASE_S / 2
        assert again.returncode == 128 + signal.SIGTERM, words
        assert words.startswith("stopped by SIGTERM before the training was finished")
        assert held(site, goes) == []
        assert site.ask("select count(*) from lease_workers") == ["1"]
        output, _ = first.communicate(timeout=700)
    assert first.returncode == 0, output
    assert output.count("packed") == 1
    with (run / "hops.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["host"] for row in rows} >= {stays.name}
    assert sum(int(row["died"]) for row in rows) == 1
    assert all(row["began"].endswith("+00:00") for row in rows)
    settings = TrainSettings.parse({**SETTINGS, "engine": {"accelerator": "cpu"}})
    (same,) = run_ranks(1, _same, run, small_dataset, settings)
    assert same == {"a": True, "b": True, "c": True}


def _done(site: Site, training: "subprocess.Popen[str]") -> int:
    assert training.poll() is None, training.communicate()[0]
    if not site.ask("select to_regclass('lease_tasks')"):
        return 0
    return int(site.ask("select count(*) from lease_tasks where state = 'done'")[0])
