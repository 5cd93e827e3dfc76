"""Containers: pairs by hand, sham and plant, command lines, no runtime, a worker that ends."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import JobError, UserError
from skindx_bench.harness.result import Figure
from skindx_bench.serve import container, container_runtimes
from skindx_bench.serve.container import ARMS, Rounds, bootstrap, judge, one_round
from skindx_bench.serve.container_runtimes import RUNTIMES, Inside, choose_runtime
from skindx_bench.serve.container_tasks import Agent, timed

INSIDE = Inside(Path("/root-of-it"), (Path("/opt/python"),), (Path("/work"),), {"A": "b"})


def test_every_arm_runs_once_a_round_and_follows_each_other_one_as_often() -> None:
    order: list[str] = []

    def run(arm: str) -> float:
        order.append(arm)
        return 1.0

    rounds = Rounds()
    for turn in range(4):
        rounds.add(one_round(run, turn))
    turns = [order[at : at + 4] for at in range(0, 16, 4)]
    assert {turn[0] for turn in turns} == set(ARMS)
    assert all(sorted(turn) == sorted(ARMS) for turn in turns)
    assert {turn[place] for place in range(4) for turn in turns} == set(ARMS)
    after = [pair for turn in turns for pair in itertools.pairwise(turn)]
    assert sorted(after) == sorted(itertools.permutations(ARMS, 2))
    assert rounds.ratios("sham") == [1.0] * 4


def test_the_interval_finds_what_is_planted_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    held, found = 0, 0
    for _ in range(200):
        host, sham, planted = rng.normal(1.0, 0.03, (3, 30))
        rounds = Rounds()
        for h, s, p in zip(host, sham, planted, strict=True):
            rounds.add({"host": h, "container": h, "sham": s, "planted": 1.05 * p})
        three = {arm: bootstrap(rounds.ratios(arm), range(30), 100, rng) for arm in ARMS[1:]}
        assert three["container"] == Figure(1.0, "×", 30, (1.0, 1.0))
        verdict = judge(three["sham"], three["planted"])
        held += verdict.sham_holds_one
        found += verdict.planted_found
    assert held > 180
    assert found > 190


def test_a_process_that_is_lucky_all_its_life_is_no_difference() -> None:
    """Rounds of one process are alike: an interval over rounds alone misses 1 most of the time."""
    rng = np.random.default_rng(0)
    held = {"starts": 0, "rounds": 0}
    for _ in range(100):
        luck = np.exp(rng.normal(0, 0.05, 8)).repeat(4)
        ratios = luck * np.exp(rng.normal(0, 0.01, 32))
        for name, starts in (("starts", np.arange(8).repeat(4)), ("rounds", range(32))):
            low, high = bootstrap(ratios.tolist(), list(starts), 100, rng).spread
            held[name] += low <= 1 <= high
    assert held["starts"] >= 85
    assert held["rounds"] <= 75
    assert bootstrap([1.0, 1.1], [0, 1], 100, rng, tests=8).spread == (1.0, 1.1)


def test_a_plant_takes_its_share_longer() -> None:
    def task() -> None:
        until = container.time.perf_counter() + 0.002
        while container.time.perf_counter() < until:
            pass

    assert timed(task, 0.0, 5) >= 0.01
    assert timed(task, 1.0, 5) >= 0.02


def test_command_lines_say_what_is_read_only(tmp_path: Path) -> None:
    podman = RUNTIMES["podman"].command(INSIDE, ["true"], tmp_path)
    assert podman[-4:] == ["--read-only", "--rootfs", "/root-of-it", "true"]
    assert "/opt/python:/opt/python:ro" in podman
    assert "/work:/work" in podman
    bwrap = RUNTIMES["bubblewrap"].command(INSIDE, ["true"], tmp_path)
    assert bwrap[:4] == ["bwrap", "--ro-bind", "/root-of-it", "/"]
    assert "--unshare-all" in bwrap
    RUNTIMES["crun"].command(INSIDE, ["true"], tmp_path / "oci")
    written = json.loads((tmp_path / "oci/config.json").read_text())
    assert written["root"] == {"path": "/root-of-it", "readonly": True}
    options = {mount["destination"]: mount.get("options") for mount in written["mounts"]}
    assert options["/opt/python"] == ["rbind", "ro"]
    assert options["/work"] == ["rbind", "rw"]


def test_without_a_runtime_every_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_runtimes.shutil, "which", lambda name: None)
    with pytest.raises(
        UserError, match=r"no container can run here \(podman: not installed; .*bub"
    ):
        choose_runtime("auto", INSIDE, ["true"])


def test_the_first_runtime_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        name = "bubblewrap"

        def command(self, inside: Inside, command: list[str], bundle: Path) -> list[str]:
            return command

    class Broken(Plain):
        name = "podman"

        def command(self, inside: Inside, command: list[str], bundle: Path) -> list[str]:
            return ["sh", "-c", "echo no namespaces >&2; exit 3"]

    monkeypatch.setattr(container_runtimes, "RUNTIMES", {"podman": Broken(), "bubblewrap": Plain()})
    monkeypatch.setattr(container_runtimes, "PROGRAMS", {"podman": "sh", "bubblewrap": "sh"})
    chosen = choose_runtime("auto", INSIDE, ["true"])
    assert chosen.runtime.name == "bubblewrap"
    assert chosen.refused == {"podman": "ended with 3: no namespaces"}


def test_debootstrap_that_fails_falls_back_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_runtimes.shutil, "which", lambda name: None)
    root, note = container_runtimes.find_root(None, tmp_path / "debian")
    assert root == Path("/")
    assert "debootstrap is not installed" in note
    inside = container_runtimes.see(root, tmp_path / "work", 1)
    assert all(
        not other.is_relative_to(one) or one == other
        for one in inside.read_only
        for other in inside.read_only
    )
    (tmp_path / "debian/bin").mkdir(parents=True)
    (tmp_path / "debian/bin/sh").touch()
    assert container_runtimes.find_root(None, tmp_path / "debian")[0] == tmp_path / "debian"
    container_runtimes.see(tmp_path / "debian", tmp_path / "work", 1)
    assert (tmp_path / "debian" / str(tmp_path / "work").lstrip("/")).is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set rootfs=/"):
        container_runtimes.see(tmp_path / "file", tmp_path / "work", 1)


def test_a_worker_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('out of memory')"]
    with (
        pytest.raises(JobError, match="container ended: out of memory"),
        Agent("host", command, {}, tmp_path / "log", {}) as agent,
    ):
        agent.seconds("cpu", 0.0, 1)


@pytest.fixture
def plain_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a runtime that isolates nothing stand in: real processes, where no container can run."""

    class Plain:
        name = "bubblewrap"

        def command(self, inside: Inside, command: list[str], bundle: Path) -> list[str]:
            return command

    monkeypatch.setattr(container_runtimes, "RUNTIMES", {"bubblewrap": Plain()})
    monkeypatch.setattr(container_runtimes, "PROGRAMS", {"bubblewrap": "sh"})


@pytest.mark.usefixtures("plain_runtime")
def test_the_bench_runs_and_keeps_whole_rounds_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = container.Config.load(None, [*container.SMALLEST, f"folder={tmp_path}"])
    result = container.run(settings)
    assert set(result.parts) == {"cpu", "disk write", "start-up"}
    assert {figure.n for figure in result.figures.values()} == {3}
    assert {figure.unit for figure in result.figures.values()} == {"×"}
    assert not result.partial
    assert not list(tmp_path.glob("work/*"))

    late = settings.model_copy(update={"tasks": ("start-up",), "limit_s": 1e-9})
    assert container.run(late).partial == "limit_s is over after 0 of 3 rounds"

    def stop(run: object, turn: int) -> dict[str, float]:
        if turn == 2:
            raise KeyboardInterrupt
        return dict.fromkeys(ARMS, 1.0)

    monkeypatch.setattr(container, "one_round", stop)
    stopped = container.run(settings.model_copy(update={"tasks": ("start-up",)}))
    assert stopped.partial == "stopped after 2 of 3 rounds"
    assert stopped.figures["start-up: container_over_host"].n == 2
