"""Exports to sparse: the same answers, choices by measurement, and networks left alone."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from exporting import export_image
from opening import PHOTO
from timm.layers import BatchNormAct2d
from tiny_bundle import pack_tiny
from torch import Tensor, nn
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core import compiled_loops
from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import put_folder
from skindx.models.classifier.classifier import Classifier, ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.exports import backend_choice, sparse_body
from skindx.models.exports.bundle_export import export_bundle
from skindx.models.exports.sparse_backend import SparseRecord
from skindx.models.exports.sparse_body import layers_that_skip, load_sparse, write_sparse
from skindx.models.exports.sparse_convolution import SOURCE
from skindx.models.exports.sparse_graph import FusedConvolution, fuse

SIDE = 48
FASTER: dict[str, float] = {"sparse": 1.0, "packed": 2.0, "torch": 3.0, "best": 1.0, "dense": 2.0}


def _classifier(model: str) -> Classifier:
    torch.manual_seed(0)
    settings = ClassifierSettings(model=model, preprocess=Preprocess(size=SIDE))
    built = build_classifier(settings, 4).eval()
    for module in built.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return built


def _squares(count: int) -> Tensor:
    random = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, SIDE, SIDE, 3), dtype=torch.uint8, generator=random)


def _timed(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float]) -> list[list[str]]:
    """Let candidates take these seconds; return what was timed."""
    timed: list[list[str]] = []

    def in_turns(
        calls: Mapping[str, Callable[[], object]], *_: object, **__: object
    ) -> dict[str, list[float]]:
        for call in calls.values():
            call()
        timed.append(list(calls))
        return {name: [seconds[name]] * 4 for name in calls}

    monkeypatch.setattr(sparse_body, "interleave", in_turns)
    return timed


class _AfterActivation(nn.Module):
    """A convolution whose batch norm brings a ReLU, and a sum that comes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.conv, self.bn = nn.Conv2d(16, 16, 3, padding=1, bias=False), BatchNormAct2d(16)

    def forward_features(self, images: Tensor) -> Tensor:
        before = self.first(images)
        return torch.relu(self.bn(self.conv(before)) + before)


@torch.inference_mode()
def test_what_comes_after_an_activation_is_not_taken_in_before_it() -> None:
    torch.manual_seed(0)
    classifier = Classifier(_AfterActivation(), Preprocess(size=SIDE)).eval()
    squares = _squares(2)
    expected = classifier.forward_features(squares)
    torch.testing.assert_close(fuse(classifier)(squares), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "model", ["test_resnet", "test_byobnet", "test_efficientnet", "mobilenetv3_small_050"]
)
@torch.inference_mode()
def test_a_fused_body_is_the_body(model: str) -> None:
    """By each choice: batch norm folded, residual and ReLU taken in, other activations kept."""
    classifier = _classifier(model)
    squares_BSS3 = _squares(2)
    wanted = classifier.forward_features(squares_BSS3)
    body = fuse(classifier)
    assert body.layers
    for choice in ("packed", "torch", "sparse"):
        for layer in body.layers.values():
            if choice != "sparse" or layer.skips:
                layer.choices = dict.fromkeys(("many", "many_threaded"), choice)
        torch.testing.assert_close(body(squares_BSS3), wanted, atol=1e-4, rtol=1e-4)
    names = dict(classifier.net.named_modules())
    assert all(isinstance(names[name], nn.Conv2d) for name in body.layers)


def test_what_follows_a_convolution_is_taken_in() -> None:
    body = fuse(_classifier("test_resnet"))
    kinds = [type(module) for module in body.graph.modules()]
    assert nn.BatchNorm2d not in kinds
    assert nn.ReLU not in kinds


class _Odd(nn.Module):
    """Two users of one convolution, a sum in place, one stretched residual, a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.norm, self.again = nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, padding=1)

    def forward_features(self, x: Tensor) -> Tensor:
        first = self.one(x)
        normed = self.norm(first).relu()
        stretched = first.mean((2, 3), keepdim=True)
        second = torch.relu(self.two(normed) + stretched)
        second += first
        third = self.again(self.again(second))
        second += third  # of another part's memory
        return torch.relu(second) + first


@torch.inference_mode()
def test_what_others_read_is_not_taken_in() -> None:
    torch.manual_seed(0)
    classifier = Classifier(_Odd(), Preprocess(size=SIDE)).eval()
    squares_BSS3 = _squares(2)
    wanted = classifier.forward_features(squares_BSS3)
    body = fuse(classifier)
    assert set(body.layers) == {"one", "two"}
    for choice in ("packed", "torch", "sparse"):
        body.layers["two"].choices = dict.fromkeys(("many", "many_threaded"), choice)
        torch.testing.assert_close(body(squares_BSS3), wanted, atol=1e-4, rtol=1e-4)


def test_zeros_are_counted_in_the_input_of_a_layer() -> None:
    classifier = _classifier("test_resnet")
    body = fuse(classifier)
    seen: dict[str, float] = {}
    for name, module in classifier.net.named_modules():
        if name in body.layers:
            module.register_forward_pre_hook(
                lambda _, inputs, name=name: seen.update(
                    {name: float((inputs[0] == 0).mean(dtype=torch.float))}
                )
            )
    squares_BSS3 = _squares(3)
    with torch.inference_mode():
        classifier.forward_features(squares_BSS3)
    zeros = sparse_body.measure_zeros(body, squares_BSS3)
    assert max(zeros.values()) > 0.2
    assert zeros == pytest.approx({name: seen[name] for name in zeros}, abs=0.01)


def test_the_faster_choice_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer without zeros is not timed; where the whole is not faster, all layers are dense."""
    body = fuse(_classifier("test_resnet"))
    zeros = dict.fromkeys(body.layers, 0.5)
    barren = list(body.layers)[-1]
    zeros[barren] = 0.01
    timed = _timed(monkeypatch, FASTER)
    found = sparse_body.choose(body, _squares(1), zeros, "fp32", threads=1)
    able = {name for name, layer in body.layers.items() if layer.skips} - {barren}
    assert {name for name, choice in found.items() if choice == "sparse"} == able
    assert {found[name] for name in body.layers.keys() - able} == {"packed"}
    assert sum("sparse" in names for names in timed) == len(able)
    assert {name: layer.choices["one"] for name, layer in body.layers.items()} == found
    _timed(monkeypatch, FASTER | {"best": 2.0})
    found = sparse_body.choose(body, _squares(2), zeros, "fp32", threads=1)
    assert set(found.values()) == {"packed"}
    assert {layer.choices["many"] for layer in body.layers.values()} == {"packed"}
    assert {layer.choices["one"] for layer in body.layers.values()} == {"packed", "sparse"}
    _timed(monkeypatch, FASTER | {"sparse": 1.99})
    found = sparse_body.choose(body, _squares(1), zeros, "fp32", threads=1)
    assert set(found.values()) == {"packed"}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Classifier]]:
    """Return a file and its network, whose layers skip zeros wherever they can."""
    if not compiled_loops.compiler():
        pytest.skip("there is no C++ compiler")
    SOURCE.kernel()  # by the user's cache, before it is replaced
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _timed(monkeypatch, FASTER)
    classifier, file = _classifier("test_resnet"), tmp_path / "body.json"
    write_sparse(file, classifier, list(_squares(2).numpy()), "fp32")
    return file, classifier


def test_another_machine_measures_again_once(
    written: tuple[Path, Classifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, classifier = written
    timed = _timed(monkeypatch, FASTER | {"sparse": 9.0})
    wanted = classifier.forward_features(_squares(2))
    load_sparse(file, classifier, SIDE, "fp32")
    assert timed == []
    monkeypatch.setattr(sparse_body, "fingerprint", lambda: "another")
    counts = []
    for _ in range(2):
        body = load_sparse(file, classifier, SIDE, "fp32")
        torch.testing.assert_close(body(_squares(2)), wanted, atol=1e-4, rtol=1e-4)
        counts.append(len(timed))
    assert counts[0] == counts[1] > 0
    assert any("sparse" in names for names in timed)


def _slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[list[str]]:
    """Let every layer and every network take these seconds to time; return what was timed."""
    timed = _timed(monkeypatch, FASTER)
    in_turns = sparse_body.interleave
    now = [1000.0]

    def slowly(*arguments: Any, **others: Any) -> dict[str, list[float]]:
        now[0] += seconds
        return in_turns(*arguments, **others)

    monkeypatch.setattr(sparse_body, "interleave", slowly)
    for module in (sparse_body, sparse_body):
        monkeypatch.setattr(
            module,
            "time",
            SimpleNamespace(monotonic=lambda: now[0], process_time=None, perf_counter=None),
        )
    return timed


def test_measuring_another_machine_ends_and_says_so(
    written: tuple[Path, Classifier],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was not measured stays dense, and that is remembered."""
    file, classifier = written
    wanted = classifier.forward_features(_squares(2))
    monkeypatch.setattr(sparse_body, "fingerprint", lambda: "slow")
    timed = _slow(monkeypatch, sparse_body.MOST_S / 2.5)
    body = load_sparse(file, classifier, SIDE, "fp32")
    assert len(timed) == 3  # the third passes the limit
    assert any("sparse" in names for names in timed)
    assert {choice for layer in body.layers.values() for choice in layer.choices.values()} <= {
        "packed",
        "torch",
    }
    assert all(layer.choices.keys() >= {"one", "many"} for layer in body.layers.values())
    torch.testing.assert_close(body(_squares(2)), wanted, atol=1e-4, rtol=1e-4)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "took its limit of 60 s: what was not measured is computed densely" in said
    cached = Path(said.rpartition("delete ")[2])
    load_sparse(file, classifier, SIDE, "fp32")
    assert len(timed) == 3
    cached.unlink()
    timed = _slow(monkeypatch, 0.01)
    caplog.clear()
    body = load_sparse(file, classifier, SIDE, "fp32")
    assert "sparse" in {layer.choices["one"] for layer in body.layers.values()}
    assert not caplog.records


def test_files_of_another_network_are_refused(written: tuple[Path, Classifier]) -> None:
    file, classifier = written
    record: dict[str, Any] = json.loads(file.read_text())
    skip, total = layers_that_skip(file)
    assert 0 < skip < total == len(record["layers"])
    stem = next(iter(record["layers"]))
    forged: list[tuple[str, dict[str, Any]]] = [
        ("lacks", {"layers": {"conv9": {"zeros": 0.5}}}),
        ("lacks", {"layers": {stem: {"zeros": 0.5, "choices": {"one": "sparse"}}}}),
        ("in bf16", {"layers": {stem: {"zeros": 0.5, "choices": {"one": "bf16"}}}}),
        ("zeros", {"layers": {stem: {"zeros": 1.5}}}),
        ("choices", {"layers": {stem: {"zeros": 0.5, "choices": {"one": "fast"}}}}),
        ("format", {"format": 2}),
    ]
    for said, change in forged:
        file.write_text(json.dumps(record | change))
        with pytest.raises(UserError, match=said):
            load_sparse(file, classifier, SIDE, "fp32")


@pytest.mark.parametrize(
    ("model", "why"), [("test_efficientnet", "zeros of a ReLU"), ("test_vit", "cannot be followed")]
)
def test_networks_without_zeros_are_left_alone(model: str, why: str, tmp_path: Path) -> None:
    settings = ClassifierSettings(model=model)
    classifier, file = build_classifier(settings, 4).eval(), tmp_path / "body.json"
    squares = [np.zeros((160, 160, 3), np.uint8), np.full((160, 160, 3), 99, np.uint8)]
    write_sparse(file, classifier, squares, "fp32")
    record = SparseRecord.read(file)
    assert why in record.alone
    assert not record.layers
    assert load_sparse(file, classifier, 160, "fp32") == classifier.forward_features


@pytest.fixture(scope="module")
def skipping(export_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle exported by the command line; do not change it."""
    bundle = pack_tiny(tmp_path_factory.mktemp("sparse") / "bundle").path
    asked = ["export", str(bundle), "--dataset", str(export_data), "--to", "sparse"]
    with pytest.MonkeyPatch.context() as patch:
        _timed(patch, FASTER)
        done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "resnet: " in done.output
    assert "convolutions skip zeros" in done.output
    assert "vit is left alone: a network of the kind VisionTransformer" in done.output
    return bundle


def test_an_exported_bundle_answers_the_same(skipping: Path) -> None:
    eager = Predictor.load(skipping, backend="eager").ensemble
    served = Predictor.load(skipping, backend="sparse")
    assert served.backend == "sparse fp32"
    for count in (1, 3):
        images = [export_image(100 + n) for n in range(count)]
        ours = eager.predict_with_features(images)
        theirs = served.ensemble.predict_with_features(images)
        np.testing.assert_allclose(theirs.probabilities_NC, ours.probabilities_NC, atol=1e-5)
        np.testing.assert_allclose(theirs.embeddings_ND, ours.embeddings_ND, atol=1e-5)
    added = {name for name in open_bundle(skipping).spec.files if name.startswith("exports/")}
    assert added == {
        "exports/sparse-fp32/export.json",
        "exports/sparse-fp32/resnet.json",
        "exports/sparse-fp32/vit.json",
    }


def test_a_diagnosis_uses_it_where_it_is_fastest(
    skipping: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(backend_choice, "fastest", lambda candidates: max(candidates, key=str))
    _timed(monkeypatch, FASTER)  # the kernel may be another one than that of the fixture
    done = CliRunner().invoke(app, ["diagnose", str(skipping), str(PHOTO), "--json"])
    assert done.exit_code == 0, done.output
    assert '"sparse fp32"' in done.output


def test_without_a_compiler_the_export_answers_densely(
    skipping: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled_loops, "compiler", lambda: "")
    _timed(monkeypatch, FASTER | {"sparse": 9.0})
    compiled_loops.CppSource.kernel.cache_clear()
    try:
        served = Predictor.load(skipping, backend="sparse").ensemble
        eager = Predictor.load(skipping, backend="eager").ensemble
        images = [export_image(7), export_image(8)]
        found, wanted = (member.probabilities(images)[0] for member in (served, eager))
    finally:
        compiled_loops.CppSource.kernel.cache_clear()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_export_that_answers_otherwise_is_refused(
    export_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = pack_tiny(tmp_path / "bundle").path
    before = open_bundle(bundle).digest
    _timed(monkeypatch, FASTER)
    forward = FusedConvolution.forward

    def wrong(layer: FusedConvolution, *inputs: Tensor) -> Tensor:
        return forward(layer, *inputs).flip(1)

    monkeypatch.setattr(FusedConvolution, "forward", wrong)
    with pytest.raises(UserError, match="fp32 export of resnet is refused"):
        export_bundle(bundle, "sparse", "fp32", export_data)
    assert open_bundle(bundle).digest == before


def test_a_bundle_without_such_networks_stays_as_it_was(
    export_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = pack_tiny(tmp_path / "bundle").path
    before = open_bundle(bundle).digest
    monkeypatch.setattr(sparse_body, "measure_zeros", lambda *_: {"conv1": 0.0})
    with pytest.raises(UserError, match="would change nothing; resnet"):
        export_bundle(bundle, "sparse", "fp32", export_data)
    assert open_bundle(bundle).digest == before
    with pytest.raises(UserError, match="sparse int8 is unsupported"):
        export_bundle(bundle, "sparse", "int8", export_data)


def test_a_forged_file_in_a_bundle_is_one_sentence(skipping: Path, tmp_path: Path) -> None:
    import shutil

    bundle, forged = tmp_path / "bundle", tmp_path / "forged"
    shutil.copytree(skipping, bundle)
    shutil.copytree(bundle / "exports/sparse-fp32", forged)
    (forged / "resnet.json").write_text('{"layers": {"nowhere": {"zeros": 0.5}}}')
    put_folder(bundle, "exports/sparse-fp32", forged)
    with pytest.raises(UserError, match="names convolutions that the network lacks"):
        Predictor.load(bundle, backend="sparse")
    assert Predictor.load(bundle).backend == "eager"
