"""What a plan takes from the settings of a training."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from skindx.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.planning.estimate import Machine, estimate
from skindx.planning.fragment import merged, read_fragment, write_fragment
from skindx.planning.plan import make
from skindx.planning.presets import preset
from skindx.planning.profile import AtBatch, Layer, Profile, Profiles
from skindx.planning.search import Limits
from skindx.planning.second_order import Kfac
from skindx.planning.workload import Member, Workload
from skindx.training.config.preconditioner import KfacSettings
from skindx.training.config.run import TrainSettings
from skindx.training.parallel.mesh import tensor_size
from skindx.training.parallel.sharding.cutting import counts_of
from skindx.training.parallel.sharding.operators import layers_of
from skindx.training.parallel.sharding.pieces import pieces_of
from skindx.training.planning.keeping import keep, recorded_steps
from skindx.training.planning.of_config import given_choice, kfac_of, workload_of
from skindx.training.recorded_step import timeline_file


def test_a_preconditioner_is_taken_with_all_that_costs_time() -> None:
    assert kfac_of(None) is None
    assert kfac_of(KfacSettings()) == Kfac()
    own = KfacSettings(
        factors_every=5,
        inverses_every=50,
        widest=2000,
        gradient_workers=0.5,
        fisher="empirical",
    )
    assert kfac_of(own) == Kfac(5, 50, 2000, 0.5, sampled=False)


def test_settings_without_split_layers_are_given_as_their_exchange() -> None:
    settings = TrainSettings.parse(
        {
            "members": [{"name": "m", "model": "resnet18"}],
            "recipe": {"batch": 32},
            "exchange": {"kind": "fused", "wire": "bf16"},
            "engine": {"ranks": 2},
        }
    )
    layer = Layer(name="a", forward_s=1, backward_s=2, parameter_bytes=4)
    machine = Machine(
        Profiles(networks=(Profile(name="resnet18", layers=(layer,)),)), preset("memory:2")
    )
    found = given_choice(settings, machine)
    assert found
    assert (found.strategy.name, found.strategy.options) == ("fused", {"wire": "bf16"})
    assert (found.ranks, found.batch, found.strategy.executed) == (2, 32, True)


def _classifier(model: str, size: int) -> nn.Module:
    preprocess = Preprocess(size=size)
    with torch.device("meta"):
        return build_classifier(ClassifierSettings(model=model, preprocess=preprocess), 10)


def _profile(model: str, size: int, batch: int = 8) -> Profile:
    """Return a network whose layers take as long as their operations at a billion a second."""
    net, layers = _classifier(model, size), list[Layer]()

    def note(name: str, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        weights = [tuple(own.shape) for own in layer.parameters(recurse=False)]
        count = sum(map(math.prod, weights))
        seconds = 1e-9 * count * output.numel() / output.shape[1]
        outputs = getattr(layer, "out_features", getattr(layer, "out_channels", 0))
        layers.append(
            Layer(name=name, operator=type(layer).__name__, forward_s=seconds,
                  backward_s=2 * seconds, shapes=weights, parameter_bytes=4 * count,
                  activation_bytes=4 * output.numel(), input_bytes=4 * inputs[0].numel(),
                  outputs=outputs, groups=getattr(layer, "groups", 1))
        )  # fmt: skip

    for name, layer in net.named_modules():
        if list(layer.parameters(recurse=False)) and not list(layer.children()):
            layer.register_forward_hook(partial(note, name))
    net(torch.zeros(batch, size, size, 3, dtype=torch.uint8, device="meta"))
    at = tuple(
        AtBatch(
            batch=count, compute_s=3 * count / batch * sum(own.forward_s or 0 for own in layers)
        )
        for count in (batch // 2, batch)
    )
    return Profile(name=model, size=size, batch=batch, layers=tuple(layers), at=at, update_s=0.01)


@pytest.mark.parametrize(
    ("kind", "model", "size", "ranks"),
    [
        ("operators", "vgg11", 64, 4),
        ("model", "vgg11", 64, 4),
        ("tensor3d", "vit_tiny_patch16_224", 224, 8),
    ],
)
def test_what_a_plan_has_found_is_trained_and_priced_alike(
    kind: str, model: str, size: int, ranks: int, tmp_path: Path
) -> None:
    raw = {
        "members": [{"name": "m", "model": model, "preprocess": {"size": size}}],
        "recipe": {"batch": 8 * ranks, "optimizer": "sgd"},
    }
    machine = Machine(Profiles(networks=(_profile(model, size),)), preset(f"1gbe:1x{ranks}"))
    settings = TrainSettings.parse(raw)
    member = Member("m", machine.profiles.networks[0], 8 * ranks, images=800)
    made = make(Workload((member,)), machine, Limits(strategy=kind, extrapolate=True))
    write_fragment(tmp_path / "plan.yaml", made)
    fragment, predicted = read_fragment(tmp_path / "plan.yaml")
    keep(tmp_path, predicted)
    with pytest.raises(UserError, match="has no recorded step"):
        recorded_steps(tmp_path)
    timeline_file(tmp_path, "m").write_text("{}")
    assert recorded_steps(tmp_path) == [tmp_path / "timeline-m.json"]
    settings = TrainSettings.parse(merged(raw, fragment))
    parallel: Any = settings.engine.parallel
    assert parallel.kind == kind
    net, image = _classifier(model, size), torch.zeros(1, size, size, 3, device="meta")
    if kind == "operators":
        assert max(parallel.degrees.values()) == ranks
        assert layers_of(net, parallel).keys() == parallel.degrees.keys()
    elif kind == "model":
        assert len(parallel.starts) == parallel.stages - 1
        assert len(counts_of(pieces_of(net, image), parallel)) == parallel.stages
    else:
        assert parallel.side == 2
    assert tensor_size(parallel, ranks) > 1
    given = given_choice(settings, machine)
    assert given
    assert given.strategy.executed
    again = estimate(member.profile, given, machine)
    assert again.step_s == pytest.approx(made.chosen.first.step_s)


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        ({"recipe": {"optimizer": "lamb"}}, False),
        ({"recipe": {"optimizer": "lars"}}, False),
        ({"engine": {"compile": True}}, True),
    ],
)
def test_split_layers_are_considered_with_lars_and_lamb(
    change: dict[str, Any], whole: bool, small_dataset: Path
) -> None:
    member = {"name": "m", "model": "test_resnet", "preprocess": {"size": 64}}
    layer = Layer(name="fc", forward_s=1, backward_s=1, shapes=((4,),), parameter_bytes=16)
    own = Profile(name="test_resnet", size=64, batch=8, layers=(layer,), update_s=0.5)
    settings = TrainSettings.parse({"members": [member], **change})
    work = workload_of(settings, small_dataset, Profiles(networks=(own,), device="cpu"))
    assert [one.whole_layers for one in work.members] == [whole]
