"""Bodies in other runtimes: the same answers, or no export at all."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from forged_bundle import forge
from network_guard import run_guarded
from numpy.typing import NDArray
from opening import Opener
from tiny_bundle import pack_tiny

from skindx.data.manifest import Record, write_manifest
from skindx.data.store import put
from skindx.diagnosis.diagnose import bundle_version
from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.change import add_metrics
from skindx.models.bundle.files import INDEX
from skindx.models.exports import export, runtimes, serving
from skindx.models.exports.export import export_bundle
from skindx.models.exports.parity import compare, refuse
from skindx.models.exports.spec import Parity, Precision, Runtime

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


def _picture(seed: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return cv2.resize(coarse, (90, 72), interpolation=cv2.INTER_CUBIC)


def _dataset(folder: Path, splits: tuple[str, ...] = ("train", "val")) -> Path:
    records = []
    for n in range(24):
        data = cv2.imencode(".png", _picture(n))[1].tobytes()
        sha256, path = put(folder, data, ".png")
        split = splits[n % len(splits)]
        records.append(Record(path, sha256, "0" * 16, 90, 72, "nv", f"g{n}", split))
    write_manifest(folder, records)
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module")
def exported(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle with both exports at fp32; do not change it."""
    bundle = pack_tiny(tmp_path_factory.mktemp("exported") / "bundle").path
    for to in ("onnx", "openvino"):
        export_bundle(bundle, to, "fp32", dataset)
    return bundle


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize("count", [1, 3])
def test_an_exported_bundle_sees_the_same(exported: Path, backend: Runtime, count: int) -> None:
    eager = Predictor.load(exported, backend="eager")
    other = Predictor.load(exported, backend=backend)
    assert (eager.backend, other.backend) == ("eager", f"{backend} fp32")
    pictures = [_picture(100 + n) for n in range(count)]
    ours, theirs = eager.ensemble.look(pictures), other.ensemble.look(pictures)
    np.testing.assert_allclose(theirs.probabilities_NC, ours.probabilities_NC, atol=1e-5)
    np.testing.assert_allclose(theirs.embeddings_ND, ours.embeddings_ND, atol=1e-5)
    for map_, same in zip(theirs.maps, ours.maps, strict=True):
        torch.testing.assert_close(map_, same, atol=1e-4, rtol=1e-4)
    # Grad-CAM differentiates the head by the runtime's map.
    leaf = theirs.maps[0].clone().requires_grad_()
    with torch.enable_grad():
        other.ensemble.members[0].classifier.head(leaf)[:, 0].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().sum() > 0


def test_threads_do_not_mix_their_pictures(exported: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ensemble = Predictor.load(exported, backend="openvino").ensemble
    pictures = [[_picture(n)] for n in range(16)]
    alone = [ensemble.probabilities(each)[0] for each in pictures]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda each: ensemble.probabilities(each)[0], pictures))
    np.testing.assert_allclose(np.concatenate(together), np.concatenate(alone), atol=1e-6)


def test_the_bundle_stays_itself(exported: Path, dataset: Path, tmp_path: Path) -> None:
    plain = pack_tiny(tmp_path / "bundle")
    created = {"created": open_bundle(exported).spec.created}
    same = replace(plain, spec=plain.spec.model_copy(update=created))
    assert bundle_version(open_bundle(exported)) == bundle_version(same)
    before = {name for name in plain.spec.files if name != INDEX}
    added = set(open_bundle(exported).spec.files) - before
    assert added == {
        "exports/onnx-fp32/export.json",
        "exports/onnx-fp32/resnet.onnx",
        "exports/onnx-fp32/vit.onnx",
        "exports/openvino-fp32/export.json",
        *(f"exports/openvino-fp32/{name}{end}" for name in MEMBERS for end in (".xml", ".bin")),
    }


MEMBERS = ("resnet", "vit")


def test_an_export_outlives_an_evaluation_and_is_verified(dataset: Path, tmp_path: Path) -> None:
    from tiny_bundle import measured

    bundle = pack_tiny(tmp_path / "bundle").path
    export_bundle(bundle, "onnx", "fp32", dataset)
    export_bundle(bundle, "onnx", "fp32", dataset)  # takes the older one's place
    add_metrics(bundle, measured(0.5))
    assert Predictor.load(bundle, backend="onnx").backend == "onnx fp32"
    file = bundle / "exports/onnx-fp32/resnet.onnx"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"resnet\.onnx was altered"):
        Predictor.load(bundle)


def _no_runtime(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    real = runtimes.importlib.util.find_spec
    monkeypatch.setattr(
        runtimes.importlib.util, "find_spec", lambda name: None if name in missing else real(name)
    )


def _fastest_is(monkeypatch: pytest.MonkeyPatch, *order: str) -> list[list[str]]:
    """Let the first of `order` that is there be the fastest; return what was measured."""
    measured: list[list[str]] = []

    def fastest(candidates: dict[str, object]) -> str:
        measured.append(sorted(candidates))
        return next(name for name in order if name in candidates)

    monkeypatch.setattr(serving, "fastest", fastest)
    return measured


def test_auto_takes_what_is_fastest_here_and_measures_once(
    exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = _fastest_is(monkeypatch, "openvino fp32", "onnx fp32")
    for _ in range(2):
        assert Predictor.load(exported).backend == "openvino fp32"
    assert measured == [["eager", "onnx fp32", "openvino fp32"]]
    measured = _fastest_is(monkeypatch, "eager")
    assert Predictor.load(pack_tiny(tmp_path / "plain").path).backend == "eager"
    assert measured == []  # nothing to choose from
    (file,) = (tmp_path / "skindx/runtimes").glob("*.json")
    file.unlink()
    assert Predictor.load(exported).backend == "eager"


def test_auto_takes_what_is_there(
    exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _fastest_is(monkeypatch, "onnx fp32", "openvino fp32")
    assert Predictor.load(exported).backend == "onnx fp32"
    with monkeypatch.context() as without:
        _no_runtime(without, "onnxruntime")
        assert Predictor.load(exported).backend == "openvino fp32"
        with pytest.raises(UserError, match=r"pip install 'skindx\[serve\]'"):
            Predictor.load(exported, backend="onnx")
        _no_runtime(without, "onnxruntime", "openvino")
        assert Predictor.load(exported).backend == "eager"
    with pytest.raises(UserError, match="no such export; run `skindx export"):
        Predictor.load(pack_tiny(exported.parent / "plain").path, backend="onnx")


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_cpu_without_the_instructions_is_told_so(
    precision: Precision, exported: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "cpu_flags", lambda: frozenset({"avx2"}))
    with pytest.raises(UserError, match=f"openvino {precision} is unsupported: this CPU has none"):
        export_bundle(exported, "openvino", precision, dataset)
    with pytest.raises(UserError, match="onnx bf16 is unsupported"):
        export_bundle(exported, "onnx", "bf16", dataset)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_coarser_export_is_checked_and_served_first(
    precision: Precision, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why := runtimes.unsupported("openvino", precision):
        pytest.skip(why)
    # Random weights tell no class from another by much: what is tried here is the way.
    monkeypatch.setattr("skindx.models.exports.parity.LEAST_SHARE", 0.0)
    bundle = pack_tiny(tmp_path / "bundle").path
    spec = export_bundle(bundle, "openvino", precision, dataset)
    assert [each.cosine > 0.8 for each in spec.parity] == [True, True]
    assert [each.cosine < 1 for each in spec.parity] == [True, True]
    assert Predictor.load(bundle, backend="openvino").backend == f"openvino {precision}"


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Path]:
    bundle = pack_tiny(tmp_path / "bundle").path
    before = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    yield bundle
    after = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    assert after == before
    assert list(tmp_path.glob("bundle*")) == [bundle], "something was left beside the bundle"


def test_an_export_that_answers_otherwise_is_refused(
    untouched: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = export.make_body

    def wrong(file: Path, classifier: torch.nn.Module, *rest: object, **how: object) -> None:
        with torch.no_grad():
            first = next(classifier.parameters())
            kept = first.clone()
            first.neg_()
            right(file, classifier, *rest, **how)  # type: ignore[arg-type]
            first.copy_(kept)

    monkeypatch.setattr(export, "make_body", wrong)
    with pytest.raises(UserError, match=r"fp32 export of resnet is refused: .* of 12 validation"):
        export_bundle(untouched, "onnx", "fp32", dataset)


def test_what_cannot_be_exported_is_named(
    untouched: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(*_: object, **__: object) -> None:
        raise torch.onnx.errors.UnsupportedOperatorError("aten::strange", 18, None)

    monkeypatch.setattr(torch.onnx, "export", strange)
    with pytest.raises(UserError, match=r"kind ResNet cannot be exported \(.*aten::strange"):
        export_bundle(untouched, "onnx", "fp32", dataset)


def test_without_validation_pictures_nothing_is_checked(untouched: Path, tmp_path: Path) -> None:
    folder = _dataset(tmp_path / "data", ("train", "test"))
    with pytest.raises(UserError, match="has no validation pictures"):
        export_bundle(untouched, "onnx", "fp32", folder)


def test_agreement_by_hand() -> None:
    eager_NC = np.log([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8]])
    same = compare("a", eager_NC, [eager_NC + 3.0], ["p", "q", "r", "s"])
    assert (same.same, same.pictures, same.share) == (4, 4, 1.0)
    assert same.cosine == pytest.approx(1)
    other_NC = eager_NC.copy()
    other_NC[3] = other_NC[3, [2, 1, 0]]
    other = compare("a", eager_NC, [eager_NC, other_NC], ["p", "p", "r", "s"])
    assert (other.same, other.share) == (3, 0.75)
    # Logits (-a, -a, 2a) and (2a, -a, -a): the cosine is (-2 + 1 - 2) / 6.
    assert other.cosine == pytest.approx(-0.5)
    # Two pictures of one group are worth one: Kish's 16 / 6 pictures instead of 4.
    assert other.low < compare("a", eager_NC, [eager_NC, other_NC], ["p", "q", "r", "s"]).low


@pytest.mark.parametrize(
    ("precision", "same", "cosine", "good"),
    [
        ("fp32", 1000, 0.9999, True),
        ("fp32", 999, 1.0, False),
        ("fp32", 1000, 0.99989, False),
        ("bf16", 995, 0.9, True),
        ("bf16", 994, 1.0, False),
        ("int8", 995, 0.9, True),
        ("int8", 994, 1.0, False),
        ("fp32", 1000, -1.0, False),
    ],
)
def test_what_is_good_enough(precision: Precision, same: int, cosine: float, good: bool) -> None:
    parity = Parity(member="a", pictures=1000, same=same, low=0.9, high=1, cosine=cosine)
    if good:
        refuse(parity, precision)
    else:
        with pytest.raises(UserError, match=r"95 % interval 90.0% to 100.0%"):
            refuse(parity, precision)


QUIET = """
import json
from skindx.system import go_offline
go_offline()
import sys, openvino
print(json.dumps(openvino.get_version()))
"""


def test_openvino_reports_nothing_to_its_makers(tmp_path: Path) -> None:
    done = run_guarded(["-c", QUIET], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert (done.calls, done.stderr) == ([], "")
    assert not (tmp_path / "intel").exists()


def test_without_us_openvino_would_report_its_import(tmp_path: Path) -> None:
    calls = run_guarded(["-c", QUIET.replace("go_offline()\n", "\n")], tmp_path).calls
    assert calls, "the guard sees no report: is the test above worth anything?"


REPORTS = ".cache/Microsoft"
"""Where ONNX Runtime keeps the device's identifier and what it is about to send."""


@pytest.mark.parametrize("ours", [True, False])
def test_onnx_runtime_reports_to_its_makers_only_without_us(tmp_path: Path, ours: bool) -> None:
    """Its reports leave by a thread in C++, which no hook in Python sees."""
    code = f"{'from skindx.system import go_offline; go_offline()' if ours else ''}\n"
    environment = {key: value for key, value in os.environ.items() if "TELEMETRY" not in key}
    environment["HOME"] = str(tmp_path)
    environment.pop("XDG_CACHE_HOME", None)
    command = [sys.executable, "-c", code + "import onnxruntime"]
    subprocess.run(command, check=True, env=environment, timeout=120)
    version = tuple(int(part) for part in metadata.version("onnxruntime").split(".")[:2])
    assert (tmp_path / REPORTS).exists() is (not ours and version >= (1, 31))


def _forged(exported: Path, folder: Path, name: str, content: bytes) -> Path:
    bundle = Path(shutil.copytree(exported, folder / "bundle"))
    forge(bundle, name, content)
    return bundle


def _external(graph: bytes, location: str) -> bytes:
    """Return a graph that takes its largest tensor from another file."""
    import onnx

    model = onnx.load_model_from_string(graph)
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


def test_a_graph_takes_no_tensor_from_another_file(exported: Path, tmp_path: Path) -> None:
    """Wherever the file lies: one that is opened for reading would be a pipe that never answers."""
    name = "exports/onnx-fp32/resnet.onnx"
    graph = (exported / name).read_bytes()
    os.mkfifo(tmp_path / "secret")
    for location in ("../../../secret", str(tmp_path / "secret"), "../../taxonomy.yaml"):
        bundle = _forged(exported, tmp_path / location.replace("/", "_"), name, b"")
        forge(bundle, name, _external(graph, location))
        with pytest.raises(UserError, match="refers to data outside itself"):
            Predictor.load(bundle, backend="onnx")
        assert Predictor.load(bundle, backend="auto").backend != "onnx fp32"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("exports/onnx-fp32/resnet.onnx", b""),
        ("exports/onnx-fp32/resnet.onnx", b"\x18\0\0\0ORTM" + b"\0" * 64),
        ("exports/onnx-fp32/resnet.onnx", b"\0" * 100),
        ("exports/openvino-fp32/resnet.xml", b""),
        ("exports/openvino-fp32/resnet.bin", b""),
        (
            "exports/openvino-fp32/resnet.xml",
            b'<!DOCTYPE n [<!ENTITY e SYSTEM "file:///etc/passwd">]><net name="&e;"/>',
        ),
        ("exports/onnx-fp32/export.json", b"{}"),
        ("exports/onnx-fp32/export.json", b'{"format": 1, "format": 1}'),
    ],
)
def test_a_damaged_export_is_one_sentence(
    exported: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    bundle = _forged(exported, tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        Predictor.load(bundle, backend="onnx" if "onnx" in name else "openvino")
    assert "\n" not in str(caught.value)


def test_a_graph_of_another_network_does_not_serve(exported: Path, tmp_path: Path) -> None:
    """Its map does not fit the network's head: that shows at loading, not in a diagnosis."""
    other = (exported / "exports/onnx-fp32/vit.onnx").read_bytes()
    bundle = _forged(exported, tmp_path, "exports/onnx-fp32/resnet.onnx", other)
    with pytest.raises(UserError, match="onnx fp32 cannot be loaded"):
        Predictor.load(bundle, backend="onnx")


def test_an_export_of_another_kind_than_its_folder_is_refused(
    exported: Path, tmp_path: Path
) -> None:
    spec = json.loads((exported / "exports/onnx-fp32/export.json").read_text())
    content = json.dumps({**spec, "precision": "bf16"}).encode()
    bundle = _forged(exported, tmp_path, "exports/onnx-fp32/export.json", content)
    with pytest.raises(UserError, match="lies elsewhere"):
        Predictor.load(bundle)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_exports_open_nothing_outside_their_bundle(
    exported: Path, opener: Opener, kind: str
) -> None:
    answer = opener.open(kind, exported)
    assert (answer["said"], answer["touched"]) == ("opened", [])
