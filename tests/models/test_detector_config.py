"""A detector's model.yaml is data: it can neither run code nor name what it likes."""

import copy
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from forged_bundle import WHOLE, copy_bundle, forge, forge_yaml
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.detector import build_detection_model, parse_config
from skindx.training.checkpoint.finished import load_parts
from skindx.training.tasks.detector_job import build_network

MODEL = "detector/model.yaml"
TINY = yaml.safe_load((WHOLE / MODEL).read_text())


def _attack(target: Path) -> str:
    return f"__import__('pathlib').Path({str(target)!r}).touch() or torch.nn.SiLU()"


def _changed(row: int, place: int, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(TINY)
    raw["backbone"][row][place] = value
    return {"backbone": raw["backbone"]}


def test_an_activation_is_not_evaluated(tmp_path: Path) -> None:
    """The file runs nothing where a bundle, a run or a training reads it."""
    bundle, target = copy_bundle(tmp_path), tmp_path / "owned"
    forge_yaml(bundle, MODEL, {"activation": _attack(target)})
    with pytest.raises(UserError, match="'activation'"):
        open_bundle(bundle).detector()
    run = tmp_path / "run"
    run.mkdir()
    (bundle / "detector").rename(run / "detector")
    (run / "detector/detector.json").write_bytes(
        (WHOLE.parent / "detector/detector.json").read_bytes()
    )
    with pytest.raises(UserError, match="'activation'"):
        load_parts(run)
    with pytest.raises(UserError, match="'activation'"):
        build_network(str(run / MODEL), 1)
    assert not target.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"wings": 2},
        {"activation": "nn.Module()"},
        {"activation": ["torch.nn.SiLU()"]},
        {"nc": "__import__('os')"},
        {"scales": {"n": ["d", 0.25, 128]}},
        {"scales": {"n": [1e9, 0.25, 128]}},
        {"depth_multiple": float("nan")},
        {"end2end": True},
        {"reg_max": 10**9},
        {"scale": "${HOME}"},
        {"backbone": []},
        _changed(0, 2, "TorchVision"),
        _changed(0, 2, "torchvision.ops.DeformConv2d"),
        _changed(0, 2, "nn.modules.container.Sequential"),
        _changed(0, 2, "Path"),
        _changed(0, 2, 7),
        _changed(0, 2, "Detect"),
        _changed(0, 3, ["d", 3, 2]),
        _changed(0, 3, ["__import__('os')", 3, 2]),
        _changed(0, 3, [10**9, 3, 2]),
        _changed(0, 3, [True, 3, 2]),
        _changed(0, 3, {"c2": 64}),
        _changed(0, 0, 999),
        _changed(0, 1, 10**9),
        _changed(0, 1, "n"),
        {"head": [*TINY["head"][:-1], [[15, 18, 99], 1, "Detect", ["nc"]]]},
        {"head": [*TINY["head"][:-1], [[15, 18, 21], 1, "Classify", ["nc"]]]},
    ],
)
def test_only_known_layers_and_numbers_pass(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^model\.yaml") as caught:
        parse_config({**TINY, **changes}, "model.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        _changed(0, 3, [64, 3, 0]),
        _changed(0, 3, [64, 3, 1, None, 7]),
        _changed(1, 0, [-1, -2]),
        _changed(9, 3, [1024, 4]),
    ],
)
def test_layers_that_do_not_fit_are_one_sentence(changes: dict[str, Any]) -> None:
    """The activation of all of ultralytics' networks is as before, also where building fails."""
    from ultralytics.nn.modules import Conv

    config = parse_config({**TINY, **changes, "activation": "nn.ReLU()"}, "model.yaml")
    with pytest.raises(UserError, match="do not fit each other") as caught:
        build_detection_model(config, 1, "model.yaml")
    assert "\n" not in str(caught.value)
    assert type(Conv.default_act).__name__ == "SiLU"


UP = [-1, 1, "nn.Upsample", [None, 4, "nearest"]]


@pytest.mark.parametrize(
    "backbone",
    [
        [*TINY["backbone"][:-1], *[UP] * 12, TINY["backbone"][-1]],
        [[-1, 1, "Conv", [4096, 1, 1]], *TINY["backbone"][1:]],
        [[-1, 1, "Conv", [64, 3, 1]], [-1, 1, "C2PSA", [64]], *TINY["backbone"][2:]],
        [[-1, 1, "nn.ConvTranspose2d", [8, 32, 32, 0]], *TINY["backbone"][1:]],
    ],
)
def test_work_without_end_is_refused_before_it_begins(backbone: list[Any]) -> None:
    raw = {**TINY, "backbone": backbone, "scales": {"n": [1, 1, 4096]}}
    with pytest.raises(UserError, match="too much memory or computation"):
        build_detection_model(parse_config(raw, "model.yaml"), 1, "model.yaml")


def test_a_network_other_than_its_weights_is_refused(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path)
    forge_yaml(bundle, MODEL, {"scales": {"n": [1.0, 2.0, 4096]}})
    with pytest.raises(UserError, match="are of different networks"):
        open_bundle(bundle).detector()


def test_an_alias_is_refused(tmp_path: Path) -> None:
    bundle = copy_bundle(tmp_path)
    forge(bundle, MODEL, b"nc: &a 1\nreg_max: *a\n" + (WHOLE / MODEL).read_bytes())
    with pytest.raises(UserError, match=r"alias \*a"):
        open_bundle(bundle).detector()


@pytest.mark.parametrize(
    "model",
    [
        "https://example.org/yolov8n.yaml",
        "ul://user/project/yolov8n.yaml",
        "gs://bucket/yolov8n.yaml",
        "../*/yolov8.yaml",
        "yolov8n.pt",
        "",
    ],
)
def test_a_model_is_never_fetched(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UserError, match="neither a detector of ultralytics"):
        build_network(model, 1)


def test_the_detectors_of_ultralytics_can_be_trained() -> None:
    """Every plain detector that it brings along passes, in its smallest and its largest size."""
    import ultralytics

    folder = Path(ultralytics.__file__).parent / "cfg/models"
    found = 0
    for file in sorted(folder.rglob("*.yaml")):
        raw = yaml.safe_load(file.read_text())
        if raw["head"][-1][2] == "Detect" and not raw.get("end2end"):
            for scale in list(raw.get("scales", {"": 0}))[::4]:
                parse_config({**raw, "scale": scale}, file.name)
                found += 1
    assert found > 20
    assert (
        sum(parameter.numel() for parameter in build_network("yolov8n.yaml", 1).parameters())
        > 3_000_000
    )


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(place=st.sampled_from(sorted(TINY)), value=plain)
def test_any_value_is_taken_or_refused(place: str, value: Any) -> None:
    with suppress(UserError):
        parse_config({**TINY, place: value}, "model.yaml")
