"""int8: layers that hurt stay in fp32, rules fit its answers, and it is refused without a gain."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import export_dataset, export_image
from hypothesis import given
from hypothesis import strategies as st
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.classifier.preprocess import framed_square
from skindx.models.exports import bundle_export, runtimes
from skindx.models.exports.bundle_export import export_bundle, rank_layers
from skindx.models.exports.fidelity import (
    measure_accuracy,
    refit_temperatures,
    refuse_loss,
    refuse_without_gain,
)
from skindx.models.exports.onnx_backend import prepare, write_onnx
from skindx.models.exports.runtimes import Gain, PairedAccuracy, Parity, Prepared, Runtime, quantise
from skindx.models.metadata_head import RULES

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
pytest.importorskip("nncf")

FASTER = Gain(over="openvino bf16", value=1.5, low=1.4, high=1.6)
SLOWER = Gain(over="openvino bf16", value=1.1, low=1.0, high=1.2)
SPLITS = ("train", "val", "calibration", "test")


@pytest.fixture(autouse=True)
def _any_cpu_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    # Speed is the bench's; random weights tell no class from another by much.
    monkeypatch.setattr(bundle_export, "measure_gain", lambda *_: FASTER)
    monkeypatch.setattr("skindx.models.exports.fidelity.LEAST_SHARE", 0.0)
    monkeypatch.setattr("skindx.models.exports.fidelity.MOST_LOST", 1.0)
    monkeypatch.setattr(runtimes, "cpu_flags", lambda: frozenset({"avx512_vnni"}))


@pytest.fixture(scope="module")
def whole_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_dataset(tmp_path_factory.mktemp("int8-data"), SPLITS, "Nevus")


@pytest.fixture(scope="module")
def sabotaged(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Return a graph that answers as before, but one layer of which int8 ruins.

    One channel before it is a thousand times larger, and its weights for it as much smaller.
    """
    folder = tmp_path_factory.mktemp("sabotaged")
    member = pack_tiny(folder / "bundle").ensemble().members[0]
    net = member.classifier.net
    with torch.no_grad():
        block = net.layer2[0]
        block.bn2.weight.fill_(1)  # zero in a new network, which would hide what comes before
        block.bn1.weight[0] *= 1000
        block.bn1.bias[0] *= 1000
        block.conv2.weight[:, 0] /= 1000
    write_onnx(folder / "exact.onnx", member.classifier, 64)
    samples = [framed_square(export_image(n), member.preprocess) for n in range(4)]
    return prepare(folder / "exact.onnx", samples, folder)


def test_the_layers_that_int8_ruins_are_found(sabotaged: Prepared) -> None:
    """One writes the channel that is too large, the other one reads it."""
    assert {name.split("/")[2:4][-1] for name in rank_layers(sabotaged)[:2]} == {"conv1", "conv2"}
    assert all("layer2.0" in name for name in rank_layers(sabotaged)[:2])


def test_a_layer_that_makes_no_numbers_is_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins of graphs hold what is added to the exact map by their one layer in int8."""
    added = {"little": 1.0, "broken": math.nan, "much": 3.0, "nothing": 0.0}
    exact = tmp_path / "exact.onnx"
    exact.write_text("0")

    def quantise_one(_: Prepared, file: Path, __: Runtime, kept: list[str]) -> None:
        (layer,) = added.keys() - set(kept)
        file.write_text(str(added[layer]))

    def load(file: Path, *_: str) -> Callable[[torch.Tensor], torch.Tensor]:
        value = float(file.read_text())
        return lambda squares: torch.full((len(squares), 1), value)

    monkeypatch.setattr(bundle_export, "quantise", quantise_one)
    monkeypatch.setattr(bundle_export, "load_body", load)
    samples = [np.zeros((2, 2, 3), np.uint8)]
    ranked = rank_layers(Prepared(exact, samples, tuple(added), attends=False))
    assert ranked == ["broken", "much", "little", "nothing"]


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_a_kept_layer_is_in_fp32(sabotaged: Prepared, to: Runtime, tmp_path: Path) -> None:
    squares = torch.from_numpy(np.stack(sabotaged.samples))
    exact = runtimes.load_body(sabotaged.graph, "onnx", "fp32")(squares)

    def error(*kept: str) -> float:
        file = tmp_path / ("body.onnx" if to == "onnx" else "body.xml")
        quantise(sabotaged, file, to, kept)
        found = runtimes.load_body(file, to, "int8")(squares)
        return float((found - exact).norm() / exact.norm())

    ruined = [name for name in sabotaged.layers if "layer2.0/conv" in name]
    # Sums of residual branches neither: otherwise no number of layers would be enough.
    assert error(*sabotaged.layers) < 1e-4
    assert error(*ruined) < error() / 2


def test_layers_go_back_to_fp32_until_the_answers_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One layer, two, four: the third attempt is right, and its layers are reported."""
    members = pack_tiny(tmp_path / "bundle").ensemble().members[:1]
    layers: list[int] = []
    monkeypatch.setattr(bundle_export, "rank_layers", lambda prepared: list(prepared.layers))
    monkeypatch.setattr("skindx.models.exports.fidelity.LEAST_SHARE", 0.995)
    monkeypatch.setattr(
        bundle_export, "quantise", lambda prepared, file, to, kept=(): layers.append(len(kept))
    )
    monkeypatch.setattr(bundle_export, "load_body", lambda *_: None)
    samples = [framed_square(export_image(n), members[0].preprocess) for n in range(2)]

    def check(_: int, __: object) -> Parity:
        return _parity(1000 if layers[-1] >= 4 else 990)

    for name in ("folder", "work", "other"):
        (tmp_path / name).mkdir()
    made = bundle_export.make_int8(
        members,
        lambda _: samples,
        check,
        to="onnx",
        folder=tmp_path / "folder",
        work=tmp_path / "work",
    )
    assert layers == [0, 1, 2, 4]
    assert len(made[2]["resnet"]) == 4
    monkeypatch.setattr(bundle_export, "good_enough", lambda *_: False)
    with pytest.raises(UserError, match="the int8 export of resnet is not accurate enough"):
        bundle_export.make_int8(
            members,
            lambda _: samples,
            lambda *_: _parity(990),
            to="onnx",
            folder=tmp_path / "folder",
            work=tmp_path / "other",
        )


def _parity(same: int) -> Parity:
    return Parity(member="resnet", pictures=1000, same=same, low=0.9, high=1, cosine=0.99)


@pytest.fixture(scope="module")
def whole(whole_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(whole_bundle, tmp_path_factory.mktemp("whole") / "bundle"))


@pytest.fixture(scope="module")
def exported_whole(
    whole_bundle: Path, whole_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a whole bundle with an export at fp32; do not change it."""
    folder = tmp_path_factory.mktemp("exported-whole")
    bundle = Path(shutil.copytree(whole_bundle, folder / "bundle"))
    export_bundle(bundle, "onnx", "fp32", whole_data)
    return bundle


@pytest.fixture
def untouched(whole: Path) -> Iterator[Path]:
    before = {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    yield whole
    assert before == {file: file.read_bytes() for file in whole.rglob("*") if file.is_file()}
    assert list(whole.parent.iterdir()) == [whole]


def test_int8_serves_by_its_own_rules(whole_bundle: Path, whole_data: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(whole_bundle, tmp_path / "bundle"))
    spec = export_bundle(bundle, "onnx", "int8", whole_data)
    fitted, own = spec.calibration, open_bundle(bundle).spec
    assert fitted is not None
    assert [rule for rule in RULES if getattr(fitted, rule)] == ["conformal"]
    assert spec.gain == FASTER
    assert spec.accuracy is not None
    assert spec.accuracy.pictures == 6
    assert json.loads((bundle / spec.folder / "export.json").read_text())["versions"]["onnx"]
    coarse = Predictor.load(bundle, backend="onnx")
    assert coarse.backend == "onnx int8"
    assert coarse.conformal == fitted.conformal != own.conformal
    assert coarse.urgent_risk is None  # six calibration images are too few to fit it again
    assert coarse.ensemble.temperature == fitted.temperature
    assert tuple(member.temperature for member in coarse.ensemble.members) == fitted.members
    eager = Predictor.load(bundle, backend="eager")
    assert (eager.conformal, eager.urgent_risk) == (own.conformal, own.urgent_risk)
    assert eager.ensemble.temperature == own.temperature
    # What it promises is fitted on its own answers: of 6 images a level of 90 % takes all classes.
    assert fitted.conformal is not None
    assert fitted.conformal.pictures == 6


def test_without_calibration_images_its_rules_cannot_be_fitted(
    untouched: Path, export_data: Path
) -> None:
    with pytest.raises(UserError, match="has no calibration images"):
        export_bundle(untouched, "onnx", "int8", export_data)


def test_without_training_images_there_are_no_ranges(untouched: Path, tmp_path: Path) -> None:
    data = export_dataset(tmp_path / "data", ("val", "calibration"), "Nevus")
    with pytest.raises(UserError, match="has no training images, which an int8 export needs"):
        export_bundle(untouched, "onnx", "int8", data)


def test_what_is_no_faster_is_refused(
    untouched: Path, whole_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_export, "measure_gain", lambda *_: SLOWER)
    with pytest.raises(UserError, match=r"1\.10 times that of openvino bf16 .* keep using"):
        export_bundle(untouched, "onnx", "int8", whole_data)


def test_without_nncf_it_is_named(
    untouched: Path, whole_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "skindx.core.machine.missing_modules", lambda *names: [n for n in names if n == "nncf"]
    )
    with pytest.raises(UserError, match=r"int8 for openvino needs nncf.*\[runtimes\]"):
        export_bundle(untouched, "openvino", "int8", whole_data)


@pytest.mark.parametrize(("low", "good"), [(1.0, False), (0.9, False), (1.01, True), (3.0, True)])
def test_a_gain_is_one_in_three_of_four_rounds(low: float, good: bool) -> None:
    gain = Gain(over="eager", value=4.0, low=low, high=5.0)
    if good:
        refuse_without_gain(gain, "onnx int8")
    else:
        with pytest.raises(UserError, match="keep using eager"):
            refuse_without_gain(gain, "onnx int8")


@pytest.mark.parametrize(("exported", "good"), [(0.795, True), (0.7949, False), (0.9, True)])
def test_half_a_point_may_be_lost(
    exported: float, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skindx.models.exports.fidelity.MOST_LOST", 0.005)
    found = PairedAccuracy(pictures=90, eager=0.8, exported=exported, low=-0.01, high=0.02)
    if good:
        refuse_loss(found, "onnx int8")
    else:
        with pytest.raises(
            UserError, match=r"79\.49 %, and that of the original networks 80\.00 %"
        ):
            refuse_loss(found, "onnx int8")


def test_accuracy_is_paired(whole_data: Path, tmp_path: Path) -> None:
    from skindx.data.manifest import read_manifest

    bundle: Bundle = pack_tiny(tmp_path / "bundle")
    ensemble, records = bundle.ensemble(), read_manifest(whole_data)
    same = measure_accuracy(ensemble, ensemble, bundle.taxonomy, whole_data, records)
    assert same is not None
    assert same.eager == same.exported
    assert same.pictures == len(records)
    unknown = [replace(record, label="unheard of") for record in records]
    assert measure_accuracy(ensemble, ensemble, bundle.taxonomy, whole_data, unknown) is None


@given(scale=st.floats(0.5, 2), seed=st.integers(0, 5))
def test_temperatures_follow_the_scale_of_logits(scale: float, seed: int) -> None:
    """Logits of twice the size need twice the temperature; the ensemble's own stays."""
    random = np.random.default_rng(seed)
    truth_N = random.integers(0, 4, 200)
    logits_MNC = random.normal(0, 1, (2, 200, 4))
    logits_MNC[:, np.arange(200), truth_N] += 1
    before = _ensemble((0.8, 1.3), 0.9)
    members, temperature = refit_temperatures(before, logits_MNC, scale * logits_MNC, truth_N)
    np.testing.assert_allclose(members, [0.8 * scale, 1.3 * scale], rtol=1e-4)
    assert temperature == pytest.approx(0.9, rel=1e-4)
    members, temperature = refit_temperatures(before, logits_MNC, logits_MNC, truth_N)
    assert (members, temperature) == ((0.8, 1.3), 0.9)


def _ensemble(members: tuple[float, ...], temperature: float):  # type: ignore[no-untyped-def]
    from skindx.models.classifier.preprocess import Preprocess
    from skindx.models.ensemble import Ensemble, Member

    one = [Member(str(t), None, Preprocess(size=64), t) for t in members]  # type: ignore[arg-type]
    return Ensemble(tuple(one), temperature)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"members": (1.0,)}, "calibrated for 1 members"),
        ({"urgent_columns": (99,)}, "has rules for class 99"),
    ],
)
def test_forged_rules_are_not_served(
    change: dict[str, object], why: str, exported_whole: Path, tmp_path: Path
) -> None:
    from skindx.core.atomic_files import write_json
    from skindx.models.bundle.bundle_changes import put_folder

    bundle = Path(shutil.copytree(exported_whole, tmp_path / "bundle"))
    own, folder = open_bundle(bundle).spec.conformal, "exports/onnx-fp32"
    assert own is not None
    columns = change.pop("urgent_columns", ())
    rule = own.model_copy(update={"urgent_columns": columns, "urgent": {}})
    fitted = {"members": (1.0, 1.0), "temperature": 1.0, "conformal": rule, **change}
    forged = tmp_path / "forged"
    forged.mkdir()
    for file in (bundle / folder).iterdir():
        (forged / file.name).write_bytes(file.read_bytes())
    raw = json.loads((forged / "export.json").read_text())
    fitted["conformal"] = rule.model_dump(mode="json")
    write_json(forged / "export.json", {**raw, "calibration": fitted})
    put_folder(bundle, folder, forged)
    with pytest.raises(UserError, match=why):
        Predictor.load(bundle, backend="onnx")
