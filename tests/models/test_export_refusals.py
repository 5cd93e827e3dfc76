"""No export at all where it answers otherwise than the network, or cannot be checked."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from exporting import export_dataset
from tiny_bundle import pack_tiny

from skindx.core.errors import UserError
from skindx.models.exports import bundle_export
from skindx.models.exports.bundle_export import export_bundle
from skindx.models.exports.fidelity import compare, require_parity
from skindx.models.exports.runtimes import Parity, Precision

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Path]:
    bundle = pack_tiny(tmp_path / "bundle").path
    before = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    yield bundle
    after = {file: file.read_bytes() for file in bundle.rglob("*") if file.is_file()}
    assert after == before
    assert list(tmp_path.glob("bundle*")) == [bundle], "something was left beside the bundle"


def test_an_export_that_answers_otherwise_is_refused(
    untouched: Path, export_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = bundle_export.make_body

    def wrong(file: Path, classifier: torch.nn.Module, *rest: object, **how: object) -> None:
        with torch.no_grad():
            first = next(classifier.parameters())
            kept = first.clone()
            first.neg_()
            right(file, classifier, *rest, **how)  # type: ignore[arg-type]
            first.copy_(kept)

    monkeypatch.setattr(bundle_export, "make_body", wrong)
    with pytest.raises(
        UserError, match=r"export of resnet is not accurate .* of 12 .* not changed"
    ):
        export_bundle(untouched, "onnx", "fp32", export_data)


def test_what_cannot_be_exported_is_named(
    untouched: Path, export_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(*_: object, **__: object) -> None:
        raise torch.onnx.errors.UnsupportedOperatorError("aten::strange", 18, None)

    monkeypatch.setattr(torch.onnx, "export", strange)
    with pytest.raises(UserError, match=r"type ResNet cannot be exported \(.*aten::strange"):
        export_bundle(untouched, "onnx", "fp32", export_data)


def test_without_validation_images_nothing_is_checked(untouched: Path, tmp_path: Path) -> None:
    folder = export_dataset(tmp_path / "data", ("train", "test"))
    with pytest.raises(UserError, match="has no validation images"):
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
    # Two images of one group are worth one: Kish's 16 / 6 images instead of 4.
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
        require_parity(parity, precision)
    else:
        with pytest.raises(UserError, match=r"95 % interval 90.0% to 100.0%"):
            require_parity(parity, precision)
