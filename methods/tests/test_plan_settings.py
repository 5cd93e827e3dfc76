"""What a plan takes from the settings of a training."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer
from skindx.core.errors import UserError
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.training.config.run import TrainSettings
from skindx_methods.plan import measured_steps
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine, estimate
from skindx_methods.plan.measure import distinct
from skindx_methods.plan.plan import make, preset
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.recorded_step import timeline_file
from skindx_methods.plan.saved_plan import merged, read_fragment, write_fragment
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.training_plan import given_choice, keep, recorded_steps, workload_of


def test_settings_without_split_layers_are_given_as_their_exchange() -> None:
    settings = TrainSettings.parse(
        {
            "members": [{"name": "m", "model": "resnet18"}],
            "recipe": {"batch": 32},
            "exchange": {"kind": "fused", "wire": "bf16"},
            "engine": {"ranks": 2},
        }
    )
    layer = ProfiledLayer(name="a", forward_s=1, backward_s=2, parameter_bytes=4)
    machine = Machine(
        Profiles(networks=(Profile(name="resnet18", layers=(layer,)),)), preset("memory:2")
    )
    found = given_choice(settings, machine)
    assert found
    assert (found.strategy.name, found.strategy.options) == ("fused", {"wire": "bf16"})
    assert (found.ranks, found.batch) == (2, 32)


def _classifier(model: str, size: int) -> nn.Module:
    preprocess = Preprocess(size=size)
    with torch.device("meta"):
        return build_classifier(ClassifierSettings(model=model, preprocess=preprocess), 10)


def _profile(model: str, size: int, batch: int = 8) -> Profile:
    """Return a network whose layers take as long as their operations at a billion a second."""
    net, layers = _classifier(model, size), list[ProfiledLayer]()

    def note(name: str, layer: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        weights = [tuple(own.shape) for own in layer.parameters(recurse=False)]
        count = sum(map(math.prod, weights))
        seconds = 1e-9 * count * output.numel() / output.shape[1]
        outputs = getattr(layer, "out_features", getattr(layer, "out_channels", 0))
        layers.append(
            ProfiledLayer(name=name, operator=type(layer).__name__, forward_s=seconds,
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


def test_what_a_plan_has_found_is_trained_and_priced_alike(tmp_path: Path) -> None:
    kind, model, size, ranks = "owt", "vgg11", 64, 4
    raw = {
        "members": [{"name": "m", "model": model, "preprocess": {"size": size}}],
        "recipe": {"batch": 8 * ranks, "optimizer": "sgd"},
    }
    machine = Machine(Profiles(networks=(_profile(model, size),)), preset(f"1gbe:1x{ranks}"))
    settings = TrainSettings.parse(raw)
    member = PlannedMember("m", machine.profiles.networks[0], 8 * ranks, images=800)
    made = make(Workload((member,)), machine, PlanLimits(strategy=kind, extrapolate=True))
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
    given = given_choice(settings, machine)
    assert given
    again = estimate(member.profile, given, machine)
    assert again.step_s == pytest.approx(made.chosen.first.step_s)


MEMBER = {"model": "test_resnet", "preprocess": {"size": 64}}


def _with(*changes: dict[str, Any]) -> TrainSettings:
    members = [{**MEMBER, "name": f"m{n}", **change} for n, change in enumerate(changes)]
    return TrainSettings.parse({"members": members, "recipe": {"batch": 16}})


@pytest.mark.parametrize(
    "change",
    [
        {"head": {"kind": "mlp"}},
        {"model_args": {"drop_rate": 0.2}},
        {"recipe": {"batch": 16, "optimizer": "sgd"}},
        {"recipe": {"batch": 16, "ema": {}}},
        {"recipe": {"batch": 8}},
        {"preprocess": {"size": 96}},
    ],
)
def test_members_that_take_other_times_are_measured_apart(change: dict[str, Any]) -> None:
    assert len(distinct(_with({}, change, {}))) == 2


def test_members_that_take_the_same_times_are_measured_once() -> None:
    other = {"seed": 3, "views": 4, "recipe": {"batch": 16, "learning_rate": 0.1}}
    assert len(distinct(_with({}, other, {"fold": 1}))) == 1


def test_long_arguments_are_told_apart_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_steps, "_LONGEST", 20)
    first, second = ({"model_args": {"drop_rate": rate}} for rate in (0.2, 0.25))
    names = [key[-1] for key in distinct(_with(first, second))]
    assert len(names) == 2
    assert max(map(len, names)) < 40


def _timed(variant: str | None, seconds: float, batch: int = 16) -> Profile:
    layer = ProfiledLayer(
        name="fc", forward_s=seconds, backward_s=1, shapes=((4,),), parameter_bytes=16
    )
    return Profile(name="test_resnet", variant=variant, size=64, batch=batch, layers=(layer,))


def test_each_member_is_priced_by_its_own_network(small_dataset: Path) -> None:
    settings = _with({}, {"head": {"kind": "mlp"}})
    plain, mlp = (key[-1] for key in distinct(settings))
    known = Profiles(networks=(_timed(mlp, 9.0), _timed(plain, 5.0), _timed(plain, 1.0, 64)))
    work = workload_of(settings, small_dataset, known)
    assert [member.profile.layers[0].forward_s for member in work.members] == [5.0, 9.0]
    made = make(work, Machine(known, preset("memory:1")), PlanLimits())
    first, second = made.chosen.members
    assert second.estimate.step_s - first.estimate.step_s == pytest.approx(4.0)


def test_a_trace_that_lacks_a_member_s_head_is_refused_and_says_so(small_dataset: Path) -> None:
    plain = Profiles(networks=(_timed("", 5.0),))
    with pytest.raises(UserError, match=r'with head=.*"mlp".*only times of .*fp32; measure'):
        workload_of(_with({"head": {"kind": "mlp"}}), small_dataset, plain)


def test_an_earlier_trace_is_taken_where_all_members_have_the_same_head(
    small_dataset: Path,
) -> None:
    earlier, mlp = Profiles(networks=(_timed(None, 5.0),)), {"head": {"kind": "mlp"}}
    assert workload_of(_with(mlp, mlp), small_dataset, earlier).members
    with pytest.raises(UserError, match="settings that it does not name"):
        workload_of(_with({}, mlp), small_dataset, earlier)


def test_heads_on_a_frozen_trunk_are_named_as_not_priced(small_dataset: Path) -> None:
    frozen = {"trunk": "frozen", "weights": "w.safetensors"}
    assert len(distinct(_with({}, frozen))) == 1
    work = workload_of(_with({}, frozen), small_dataset, Profiles(networks=(_timed("", 1.0),)))
    assert [member.name for member in work.members] == ["m0"]
    assert any("frozen trunk (m1)" in note for note in work.unpriced)
    with pytest.raises(UserError, match="computed once"):
        workload_of(_with(frozen), small_dataset, Profiles(networks=(_timed("", 1.0),)))


@pytest.mark.parametrize(
    ("change", "whole", "matrices"),
    [
        ({"recipe": {"optimizer": "lamb"}}, False, False),
        ({"recipe": {"optimizer": "lars"}}, False, False),
        ({"recipe": {"optimizer": "muon"}}, False, True),
        ({"engine": {"compile": True}}, True, False),
    ],
)
def test_split_layers_are_considered_with_lars_and_lamb(
    change: dict[str, Any], whole: bool, matrices: bool, small_dataset: Path
) -> None:
    member = {"name": "m", "model": "test_resnet", "preprocess": {"size": 64}}
    layer = ProfiledLayer(name="fc", forward_s=1, backward_s=1, shapes=((4,),), parameter_bytes=16)
    own = Profile(name="test_resnet", size=64, batch=8, layers=(layer,), update_s=0.5)
    settings = TrainSettings.parse({"members": [member], **change})
    work = workload_of(settings, small_dataset, Profiles(networks=(own,), device="cpu"))
    assert [(one.whole_layers, one.matrices) for one in work.members] == [(whole, matrices)]
