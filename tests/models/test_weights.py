import argparse
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save

from skindx.core.errors import UserError
from skindx.models.bounded_files import read_state
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.pretrained import pretrained_file

SMALL = ClassifierSettings(model="test_resnet")
STATE = {"conv.weight": torch.ones(2, 3), "fc.bias": torch.zeros(2)}


def _under(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in STATE.items()}


@pytest.mark.parametrize(
    "saved",
    [
        STATE,
        {"state_dict": STATE, "epoch": 3},
        {"model": STATE, "optimizer": {"state": {}}},
        {"state_dict": _under("module.")},
        {"state_dict": _under("module._orig_mod.")},
        {"state_dict": _under("model.")},
        {"state_dict": {name: value + 1 for name, value in STATE.items()}, "state_dict_ema": STATE},
        {"state_dict": STATE, "args": argparse.Namespace(lr=0.1, model="resnet50", scale=[1, 2])},
        {"state_dict": STATE, "state_dict_ema": None},
    ],
    ids=[
        "plain",
        "timm",
        "torchvision",
        "parallel",
        "compiled",
        "lightning",
        "ema",
        "args",
        "none",
    ],
)
def test_weights_of_other_trainers_are_read(tmp_path: Path, saved: object) -> None:
    torch.save(saved, tmp_path / "checkpoint.pth.tar")
    found = read_state(tmp_path / "checkpoint.pth.tar")
    assert found.keys() == STATE.keys()
    assert all(found[name].equal(value) for name, value in STATE.items())


def test_a_tensor_named_like_a_wrapper_is_a_tensor(tmp_path: Path) -> None:
    torch.save({"model": torch.ones(1), "fc.bias": torch.zeros(2)}, tmp_path / "w.pth")
    assert read_state(tmp_path / "w.pth").keys() == {"model", "fc.bias"}


class _Hub(BaseHTTPRequestHandler):
    """The model hub, as far as one file goes."""

    content = b""
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(self.path)
        found = self.path == "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"0123456789abcdef0123456789abcdef"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content) if found else 0))
        self.end_headers()
        if found and self.command == "GET":
            self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    """A hub of our own with weights for `test_resnet`, and folders of our own for what it gives."""
    for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    torch.manual_seed(7)
    _Hub.content = save(timm.create_model("test_resnet").state_dict())
    _Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield _Hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.long
def test_timms_weights_are_fetched_once(hub: type[_Hub]) -> None:
    file = pretrained_file(SMALL)
    torch.manual_seed(7)
    wanted = timm.create_model("test_resnet").state_dict()
    classifier = build_classifier(SMALL, 3)
    assert load_weights(classifier, file) == ["fc.weight", "fc.bias"]
    own = classifier.net.state_dict()
    assert all(own[name].equal(wanted[name]) for name in own if not name.startswith("fc."))
    asked = len(hub.asked)
    assert asked > 0
    assert pretrained_file(SMALL) == file
    assert len(hub.asked) == asked


def _refused(model: str) -> str:
    with pytest.raises(UserError) as caught:
        pretrained_file(ClassifierSettings(model=model))
    return str(caught.value)


def test_weights_that_cannot_be_fetched_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert _refused("test_vit") == (
        "the weights of 'test_vit' are not on this machine and could not be downloaded (code 1); "
        "connect to a network once, or set the member's `pretrained: false` and give a file with "
        "`skindx train --weights FILE`."
    )


@pytest.mark.long
def test_a_hub_without_the_weights_is_one_sentence(hub: type[_Hub]) -> None:
    said = _refused("test_vit")
    assert "could not be downloaded (" in said
    assert ". " not in said
    assert len(said) < 350


@pytest.mark.parametrize("model", ["resnet18", "no_such_model"])
def test_a_model_without_weights(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: None)
    with pytest.raises(UserError, match=f"timm has no pretrained weights for '{model}'"):
        pretrained_file(ClassifierSettings(model=model))
