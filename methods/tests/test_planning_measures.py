"""What `skindx plan` measures of the trainer itself, on real ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import timm
import torch
import yaml
from ranks import run_ranks
from safetensors.torch import save_file

from skindx.comm.fabric import Fabric
from skindx.core.cost.profile import Profile
from skindx.core.errors import UserError
from skindx.data.loader.batches import partition
from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.tasks.open_sets import TrainingData
from skindx_bench.cluster.network_probe import cluster_of, rising
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.measure import measure
from skindx_methods.plan.measured_steps import profile_member
from skindx_methods.plan.plan import make
from skindx_methods.plan.profiles import Profiles, trace_of
from skindx_methods.plan.saved_plan import Predicted, write_fragment
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.training_plan import (
    given_choice,
    keep,
    read_kept,
    settings_with_plan,
    workload_of,
)

RAW: dict[str, Any] = {
    "members": [{"name": "m", "model": "test_resnet", "preprocess": {"size": 32}}],
    "recipe": {"epochs": 2, "batch": 8},
    "engine": {"accelerator": "cpu", "ranks": 1},
}

AGAIN = {**RAW, "engine": {**RAW["engine"], "activation_checkpointing": True}}
"""Computes activations again in backward."""


def _measured(dataset: Path) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    settings = TrainSettings.parse(RAW)
    mesh = join(settings.engine)
    train, held = partition(read_manifest(dataset), None, settings.folds)
    data = TrainingData(dataset, train, held, Taxonomy.load(dataset / "taxonomy.yaml").keys)
    again = TrainSettings.parse(AGAIN)
    return [
        profile_member(own, own.members[0], data, mesh, batch=8, budget_s=0.2).model_dump(
            mode="json"
        )
        for own in (settings, again)
    ]


@pytest.fixture(scope="module")
def both(small_dataset: Path) -> list[Profile]:
    [raw] = run_ranks(1, _measured, small_dataset)
    return [Profile.model_validate(profile) for profile in raw]


@pytest.fixture(scope="module")
def profiles(both: list[Profile]) -> Profiles:
    return Profiles(version="now", networks=(both[0],))


@pytest.mark.long
@pytest.mark.distributed
def test_a_network_is_measured_layer_by_layer(profiles: Profiles) -> None:
    [network] = profiles.networks
    # Of test_resnet with a head of three classes.
    assert network.parameter_bytes // 4 == sum(
        parameter.numel() for parameter in _test_resnet().parameters()
    )
    assert [point.batch for point in network.at] == [4, 8]
    assert network.at[0].peak_bytes <= network.at[1].peak_bytes
    trace = trace_of(network)
    assert trace.forward_s > 0
    assert sum(trace.sizes_bytes) == network.parameter_bytes
    whole = trace.forward_s + sum(trace.backward_s)
    assert whole == pytest.approx(network.at[1].compute_s, rel=0.5)
    assert network.optimizer_bytes == pytest.approx(2 * network.parameter_bytes, rel=0.01)
    assert network.read_s > 0
    assert {"dense", "fused", "gtopk", "powersgd"} <= set(network.local)
    assert all(work.base_s > 0 for work in network.local.values())
    assert all(layer.activation_bytes > 0 for layer in network.layers)
    head = network.layers[-1]
    assert (head.operator, head.outputs, head.groups) == ("Linear", 3, 1)
    assert head.input_bytes > 0
    assert network.rates
    assert network.rates.product_flop_s > 1e6


@pytest.mark.long
@pytest.mark.distributed
def test_activations_computed_again_are_timed_beside_the_plain_steps(both: list[Profile]) -> None:
    plain, again = both
    assert plain.checkpointing is None
    assert [point.batch for point in again.at] == [2, 4]
    assert again.batch == 4
    assert again.checkpointing
    assert again.checkpointing.batch == 8
    assert again.checkpointing.compute_s > 0
    assert again.checkpointing.peak_bytes > 0


@pytest.mark.long
@pytest.mark.distributed
def test_a_measurement_that_is_killed_leaves_nothing(small_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(RAW))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    shared = set(Path("/dev/shm").iterdir())
    words = ["plan", "measure", str(tmp_path / "c.yaml"), str(small_dataset), "--seconds", "600",
             "--out", str(tmp_path / "trace.json"), "--ranks", "2"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "skindx", *words],
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    ranks: list[psutil.Process] = []
    deadline = time.monotonic() + 200
    try:
        while len(ranks) < 2 and time.monotonic() < deadline:
            assert process.poll() is None
            ranks = [
                child
                for child in psutil.Process(process.pid).children()
                if "resource_tracker" not in " ".join(child.cmdline())
            ]
            time.sleep(0.1)
        time.sleep(0.5)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(ranks) == 2
    _, alive = psutil.wait_procs(ranks, timeout=60)
    assert not alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "tmp"]
    assert not [path for path in temporary.rglob("*") if path.is_file()]
    assert set(Path("/dev/shm").iterdir()) <= shared


@pytest.mark.long
@pytest.mark.distributed
def test_one_rank_measures_members_with_weights_and_tells_their_heads_apart(
    small_dataset: Path, tmp_path: Path
) -> None:
    # Reading weights starts OpenMP's threads, which a fork would wait for.
    save_file(dict(timm.create_model("test_resnet").state_dict()), tmp_path / "w.safetensors")
    given = {"model": "test_resnet", "weights": str(tmp_path / "w.safetensors"),
             "preprocess": {"size": 32}}  # fmt: skip
    members = [{**given, "name": "a"}, {**given, "name": "b", "head": {"kind": "mlp"}}]
    settings = TrainSettings.parse({**RAW, "members": members})
    found = measure(settings, small_dataset, seconds=0.5)
    assert [len(network.layers) for network in found.networks] == [31, 32]
    work = workload_of(settings, small_dataset, found)
    assert [member.profile for member in work.members] == list(found.networks)


def _test_resnet() -> torch.nn.Module:
    network: torch.nn.Module = timm.create_model("test_resnet", num_classes=3)
    return network


def _linked() -> dict[str, Any]:
    torch.set_num_threads(1)
    mesh = join(TrainSettings.parse(RAW).engine)
    assert Fabric(mesh.device, timedelta(seconds=60)).world == 2
    return cluster_of(mesh, ranks_per_node=1, budget_s=0.1).model_dump(mode="json")


@pytest.mark.long
@pytest.mark.distributed
def test_links_are_measured_alike_on_all_ranks_and_a_plan_of_both_is_followed(
    profiles: Profiles, small_dataset: Path, tmp_path: Path
) -> None:
    first, second = run_ranks(2, _linked)
    assert first["collectives"] == second["collectives"]
    cluster = Cluster.model_validate(first)
    assert (cluster.nodes, cluster.ranks_per_node, cluster.source) == (2, 1, "measured")
    assert {collective.collective for collective in cluster.collectives} == {
        "all_reduce", "all_gather", "exchange",
    }  # fmt: skip
    for known in cluster.collectives:
        assert known.beta_s_per_byte > 0
        seconds = [taken for _, taken in known.points]
        assert seconds == sorted(seconds)
    settings = TrainSettings.parse(RAW)
    machine = Machine(profiles, cluster)
    work = workload_of(settings, small_dataset, profiles)
    made = make(
        work,
        machine,
        PlanLimits(extrapolate=True, strategy="fused"),
        given_choice(settings, machine),
    )
    file = tmp_path / "plan.yaml"
    write_fragment(file, made)
    # Two nodes, and no setting says where they are.
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(RAW))
    os.environ.pop("RANK", None)
    with pytest.raises(UserError, match="for 2 nodes, but no setting names them"):
        settings_with_plan(tmp_path / "c.yaml", [], file, small_dataset)
    file.write_text(file.read_text().replace("nodes: 2", "nodes: 1"))
    followed, predicted = settings_with_plan(
        tmp_path / "c.yaml", ["recipe.epochs=1"], file, small_dataset
    )
    assert followed.exchange.kind == "fused"
    assert followed.recipe.epochs == 1
    keep(tmp_path / "run", predicted)
    assert read_kept(tmp_path / "run") == predicted


@pytest.mark.long
@pytest.mark.distributed
def test_ranks_of_torchrun_measure_the_network_together(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command += ["-m", "skindx_bench", "network", "--out", str(file), "--seconds", "1"]
    command += ["--set", "engine.accelerator=cpu"]
    done = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    cluster = Cluster.read(file)
    # Both on this host, which its name says; only the first rank reports.
    assert (cluster.nodes, cluster.ranks_per_node, cluster.source) == (1, 2, "measured")
    assert cluster.links.inside
    assert cluster.links.between is None
    assert done.stdout.count("1 nodes of 2 ranks") == 1


def test_a_plan_of_another_dataset_or_of_other_members_is_refused(
    small_dataset: Path, tmp_path: Path
) -> None:
    predicted = Predicted.model_validate(
        {"version": __import__("skindx").__version__, "dataset": "0" * 64, "cluster": "c",
         "nodes": 1, "ranks_per_node": 1, "members": [], "seconds": 1}
    )  # fmt: skip
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(RAW))
    for change, words in (
        ({}, "another dataset"),
        ({"dataset": "", "members": [_nobody()]}, "has the member nobody"),
    ):
        plain = {**predicted.model_dump(mode="json"), **change}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"plan": plain}))
        with pytest.raises(UserError, match=words):
            settings_with_plan(tmp_path / "c.yaml", [], tmp_path / "plan.yaml", small_dataset)
    with pytest.raises(UserError, match="was not trained with a plan"):
        read_kept(tmp_path)


def test_what_earlier_versions_kept_of_a_plan_and_a_trace_is_read(tmp_path: Path) -> None:
    kept = {"format": 1, "version": "1.0.0", "dataset": "0" * 64, "cluster": "10gbe:4x2",
            "nodes": 4, "ranks_per_node": 2, "members": [_nobody()], "seconds": 3600.5}  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(kept))
    assert read_kept(tmp_path).model_dump(mode="json") == kept
    layer = {"name": "fc", "forward_s": 1, "backward_s": 2, "parameter_bytes": 4, "layer_s": 3}
    trace = {"format": 1, "version": "1.0.0", "networks": [{"name": "m", "layers": [layer]}],
             "copy_s": 0.5}  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    [network] = Profiles.read(tmp_path / "trace.json").networks
    assert (network.variant, network.layers[0].backward_s) == (None, 2)


def _nobody() -> dict[str, Any]:
    return {"name": "nobody", "step_s": 1, "half_width": 0.1, "parts": {}, "images_per_s": 1,
            "epoch_s": 1, "seconds": 1, "memory_bytes": 1}  # fmt: skip


@pytest.mark.long
@pytest.mark.distributed
def test_a_network_that_was_never_timed_is_named(small_dataset: Path, profiles: Profiles) -> None:
    raw = {**RAW, "members": [{"name": "m", "model": "resnet18", "preprocess": {"size": 32}}]}
    with pytest.raises(UserError, match=r"resnet18 at 32 px in fp32, .*only times of"):
        workload_of(TrainSettings.parse(raw), small_dataset, profiles)


def test_points_that_fall_are_averaged() -> None:
    assert rising([(1, 2.0), (2, 4.0), (3, 1.0), (4, 5.0)]) == (
        (1, 2.0), (2, 2.5), (3, 2.5), (4, 5.0),
    )  # fmt: skip
