"""What `skindx plan` measures of the trainer itself, on real ranks."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from ranks import run_ranks

from skindx.comm.fabric import Fabric
from skindx.data.manifest import read_manifest
from skindx.errors import UserError
from skindx.planning.cluster import Cluster
from skindx.planning.estimate import Machine
from skindx.planning.fragment import Predicted, write_fragment
from skindx.planning.plan import make
from skindx.planning.profile import Profile, Profiles
from skindx.planning.search import Limits
from skindx.taxonomy import Taxonomy
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.joining import join
from skindx.training.feeding.folds import partition
from skindx.training.feeding.reading import TrainingData
from skindx.training.planning.keeping import keep, read_kept, settings_with_plan
from skindx.training.planning.network import cluster_of
from skindx.training.planning.of_config import given_choice, workload_of
from skindx.training.planning.steps import profile_member
from skindx.training.profiling.visits import rising

RAW: dict[str, Any] = {
    "members": [{"name": "m", "model": "test_resnet", "preprocess": {"size": 32}}],
    "recipe": {"epochs": 2, "batch": 8},
    "engine": {"accelerator": "cpu", "ranks": 1},
}


def _measured(dataset: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    settings = TrainSettings.parse(RAW)
    mesh = join(settings.engine)
    train, held = partition(read_manifest(dataset), None, settings.folds)
    data = TrainingData(dataset, train, held, Taxonomy.load(dataset / "taxonomy.yaml").keys)
    found = profile_member(settings, settings.members[0], data, mesh, batch=8, budget_s=0.2)
    return found.model_dump(mode="json")


@pytest.fixture(scope="module")
def profiles(small_dataset: Path) -> Profiles:
    [raw] = run_ranks(1, _measured, small_dataset)
    return Profiles(version="now", networks=(Profile.model_validate(raw),))


@pytest.mark.long
@pytest.mark.distributed
def test_a_network_is_measured_layer_by_layer(profiles: Profiles) -> None:
    [network] = profiles.networks
    # Of test_resnet with a head of three classes.
    assert network.elements == sum(parameter.numel() for parameter in _test_resnet().parameters())
    assert [point.batch for point in network.at] == [4, 8]
    assert network.at[0].peak_bytes <= network.at[1].peak_bytes
    trace = network.trace()
    assert trace.forward_s > 0
    assert sum(trace.sizes_bytes) == network.parameter_bytes
    whole = trace.forward_s + sum(trace.backward_s)
    assert whole == pytest.approx(network.at[1].compute_s, rel=0.5)
    assert network.optimizer_bytes == pytest.approx(8 * network.elements, rel=0.01)
    assert network.read_s > 0
    assert {"dense", "fused", "gtopk", "powersgd"} <= set(network.local)
    assert all(work.base_s > 0 for work in network.local.values())
    assert all(layer.activation_bytes > 0 for layer in network.layers)


def _test_resnet() -> torch.nn.Module:
    import timm

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
    assert {each.collective for each in cluster.collectives} == {
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
        work, machine, Limits(extrapolate=True, strategy="fused"), given_choice(settings, machine)
    )
    file = tmp_path / "plan.yaml"
    write_fragment(file, made)
    # Two nodes, and nothing says where they are.
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(RAW))
    os.environ.pop("RANK", None)
    with pytest.raises(UserError, match="for 2 nodes, and nothing says where"):
        settings_with_plan(tmp_path / "c.yaml", [], file, small_dataset)
    file.write_text(file.read_text().replace("nodes: 2", "nodes: 1"))
    followed, predicted = settings_with_plan(
        tmp_path / "c.yaml", ["recipe.epochs=1"], file, small_dataset
    )
    assert followed.exchange.kind == "fused"
    assert followed.recipe.epochs == 1
    keep(tmp_path / "run", predicted)
    assert read_kept(tmp_path / "run") == predicted


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
        ({"dataset": "", "members": [_nobody()]}, "plans a member nobody"),
    ):
        plain = {**predicted.model_dump(mode="json"), **change}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"plan": plain}))
        with pytest.raises(UserError, match=words):
            settings_with_plan(tmp_path / "c.yaml", [], tmp_path / "plan.yaml", small_dataset)
    with pytest.raises(UserError, match="was not trained by a plan"):
        read_kept(tmp_path)


def _nobody() -> dict[str, Any]:
    return {"name": "nobody", "step_s": 1, "half_width": 0.1, "parts": {}, "images_per_s": 1,
            "epoch_s": 1, "seconds": 1, "memory_bytes": 1}  # fmt: skip


@pytest.mark.long
@pytest.mark.distributed
def test_a_network_that_was_never_timed_is_named(small_dataset: Path, profiles: Profiles) -> None:
    raw = {**RAW, "members": [{"name": "m", "model": "resnet18", "preprocess": {"size": 32}}]}
    with pytest.raises(UserError, match="resnet18 at 32 px in fp32, which was never timed"):
        workload_of(TrainSettings.parse(raw), small_dataset, profiles)


def test_points_that_fall_are_averaged() -> None:
    assert rising([(1, 2.0), (2, 4.0), (3, 1.0), (4, 5.0)]) == (
        (1, 2.0), (2, 2.5), (3, 2.5), (4, 5.0),
    )  # fmt: skip
