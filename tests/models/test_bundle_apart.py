"""Opening what people pass around touches nothing else, and always ends in one of two ways.

Each is opened in a process that notes every file and socket, may not write a byte to any file, and
has two gibibytes and half a minute: a bundle is loaded with all of its parts and diagnoses a photo.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from forged_bundle import WHOLE, change_index, copy_bundle
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import apply, mutation
from opening import SECONDS, Opener

FIXTURE = WHOLE.parents[1]
CHECKPOINT = FIXTURE / "half/checkpoints/a/epoch-0003-step-000004"


def _is_harmless(answer: dict[str, Any]) -> None:
    said = answer["said"]
    assert said == "opened" or said.startswith("refused: "), said
    assert "\n" not in said
    assert answer["touched"] == []
    assert answer["seconds"] < SECONDS


@pytest.mark.parametrize(
    ("kind", "path"),
    [("bundle", WHOLE), ("run", FIXTURE / "whole"), ("checkpoint", CHECKPOINT)],
)
def test_nothing_outside_is_touched(opener: Opener, kind: str, path: Path) -> None:
    answer = opener.open(kind, path)
    assert answer["said"] == "opened"
    _is_harmless(answer)


@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_exports_open_nothing_outside_their_bundle(
    exported: Path, opener: Opener, kind: str
) -> None:
    for module in ("onnxruntime", "openvino"):
        pytest.importorskip(module)
    answer = opener.open(kind, exported)
    assert (answer["said"], answer["touched"]) == ("opened", [])


def test_a_file_outside_would_be_noticed(opener: Opener, tmp_path: Path) -> None:
    """A folder whose files lie elsewhere shows that the watch works."""
    shutil.copytree(FIXTURE / "whole/detector", tmp_path / "detector")
    (tmp_path / "members").symlink_to(FIXTURE / "whole/members")
    answer = opener.open("run", tmp_path)
    assert answer["said"] == "opened"
    assert any("validation.npz" in module for module in answer["touched"])


def test_a_checkpoint_reaches_no_file_outside(opener: Opener, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(CHECKPOINT, tmp_path / "checkpoint"))
    index = json.loads((checkpoint / "index.json").read_text())
    index["files"]["../secret"] = {"bytes": 1, "sha256": "0"}
    from skindx.training.checkpoint.keeper import _seal

    body = {key: value for key, value in index.items() if key != "seal"}
    (checkpoint / "index.json").write_text(json.dumps({**body, "seal": _seal(body)}))
    answer = opener.open("checkpoint", checkpoint)
    _is_harmless(answer)
    assert "does not list the files of its ranks" in answer["said"]


def _try(opener: Opener, folder: Path, change: tuple[str, bytes], *, hashed: bool) -> None:
    bundle = copy_bundle(folder)
    try:
        apply(bundle, *change, hashed=hashed)
        _is_harmless(opener.open("bundle", bundle))
    finally:
        shutil.rmtree(bundle)


ALL = {"suppress_health_check": list(HealthCheck), "phases": (Phase.explicit, Phase.generate)}


@settings(derandomize=True, **ALL)  # type: ignore[arg-type]
@given(change=mutation(WHOLE), hashed=st.sampled_from([True, True, True, False]))
def test_a_changed_bundle_opens_or_is_refused(
    opener: Opener, tmp_path: Path, change: tuple[str, bytes], hashed: bool
) -> None:
    _try(opener, tmp_path, change, hashed=hashed)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@settings(max_examples=2000, **ALL)  # type: ignore[arg-type]
@given(change=mutation(WHOLE), hashed=st.sampled_from([True] * 9 + [False]))
def test_many_changed_bundles_open_or_are_refused(
    opener: Opener, tmp_path: Path, change: tuple[str, bytes], hashed: bool
) -> None:
    _try(opener, tmp_path, change, hashed=hashed)


def test_a_network_of_timm_that_would_be_fetched_opens_no_socket(
    opener: Opener, tmp_path: Path
) -> None:
    bundle = copy_bundle(tmp_path)
    place = ("members", 0, "classifier", "model_args")
    change_index(bundle, place, {"pretrained_cfg": {"url": "http://127.0.0.1:9/w.pth"}})
    answer = opener.open("bundle", bundle)
    _is_harmless(answer)
    assert answer["said"].startswith("refused: ")
