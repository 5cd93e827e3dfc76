"""Two hosts of a hostfile, reached as by pdsh: their network is measured, and members hop."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from nodes import two_nodes
from one_process import recorded

from skindx_methods.plan.cluster import Cluster

pytestmark = [pytest.mark.long, pytest.mark.distributed]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Return the settings that start a rank on each of two hosts."""
    with two_nodes() as nodes:
        nodes.write_pdsh(tmp_path)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        hostfile = tmp_path / "hostfile"
        hostfile.write_text("".join(f"{address} slots=1\n" for address in nodes.addresses))
        yield {"accelerator": "cpu", "hostfile": str(hostfile), "interface": "cable0"}


def _skindx(*arguments: object, module: str = "skindx") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_the_network_between_them_is_measured(engine: dict[str, str], tmp_path: Path) -> None:
    config, file = tmp_path / "train.yaml", tmp_path / "cluster.yaml"
    config.write_text(yaml.safe_dump({"engine": engine}))
    # Both have this machine's host name, so how many ranks share a node is said.
    command = ["network", "--config", config, "--out", file, "--seconds", 1]
    done = _skindx(*command, "--ranks-per-node", 1, module="skindx_bench")
    assert done.returncode == 0, done.stderr
    cluster = Cluster.read(file)
    assert (cluster.nodes, cluster.ranks_per_node, cluster.source) == (2, 1, "measured")
    assert cluster.links.between
    assert cluster.links.inside is None


def test_members_hop_between_them(
    engine: dict[str, str], small_dataset: Path, tmp_path: Path
) -> None:
    raw = {
        "engine": {**engine, "schedule": "hop", "lease_s": 20},
        "recipe": {"epochs": 1, "batch": 9},
        "members": [
            {"name": name, "model": "test_resnet", "seed": seed, "preprocess": {"size": 64}}
            for seed, name in enumerate("ab")
        ],
    }
    config, run = tmp_path / "hop.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(raw))
    done = _skindx("train", small_dataset, "--config", config, "--out", run)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("packed") == 1
    for member in "ab":
        order = recorded(run, member)
        assert {epoch: sorted(parts) for epoch, parts in order.items()} == {0: [0, 1]}
