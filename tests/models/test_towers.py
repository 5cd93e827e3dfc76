"""Towers in the formats of timm and open_clip answer as the networks that wrote them."""

import json
import pickle
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from tower_folders import MEAN, SIGLIP, STD, open_clip_folder, siglip_folder, timm_folder

from skindx.core.errors import UserError
from skindx.models import towers
from skindx.models.classifier.classifier import (
    Classifier,
    build_classifier,
    load_weights,
    try_network,
)
from skindx.models.towers import Tower, TowerOrigin, is_tower, origin_lines, resolve_tower


@pytest.fixture(autouse=True)
def without_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the cache here, and let nobody open a socket."""

    def refuse(*arguments: object, **more: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "socket", refuse)


def _resolved(folder: Path, *, pretrained: bool = True, **own: Any) -> Tower:
    args, preprocess = own.pop("args", {}), own
    return resolve_tower(
        f"local-dir:{folder}", pretrained=pretrained, user_args=args, user_preprocess=preprocess
    )


def _classifier(tower: Tower) -> Classifier:
    classifier = build_classifier(tower.network, 3)
    assert tower.weights
    fresh = load_weights(classifier, tower.weights)
    assert {name.rsplit(".", 1)[0] for name in fresh} in ({"head"}, {"head.fc"})
    return classifier.eval()


def _pooled(classifier: Classifier, images_BSS3: Tensor) -> Tensor:
    return classifier.forward_pooled(classifier.forward_features(images_BSS3))


def _images(side: int) -> tuple[Tensor, Tensor]:
    """Return images as a classifier sees them, and as the towers here were trained on them."""
    random = torch.Generator().manual_seed(1)
    images_BSS3 = torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8, generator=random)
    normal = (images_BSS3 / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    return images_BSS3, normal.permute(0, 3, 1, 2)


@pytest.mark.parametrize("coca", [False, True], ids=["clip", "coca"])
def test_a_tower_of_open_clip_gives_its_own_embedding(tmp_path: Path, coca: bool) -> None:
    ours = open_clip_folder(tmp_path / "tower", coca=coca)
    tower = _resolved(tmp_path / "tower")
    classifier = _classifier(tower)
    images_BSS3, normal_B3SS = _images(64)
    with torch.inference_mode():
        found, wanted = _pooled(classifier, images_BSS3), ours.pooled(normal_B3SS)
    assert found.shape == (2, 24 if coca else 32)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert tower.network.preprocess.crop == 1
    try_network(tower.network, 3)  # it can be trained and explained


def test_a_siglip_tower_gives_its_own_embedding(tmp_path: Path) -> None:
    ours = siglip_folder(tmp_path / "tower")
    tower = _resolved(tmp_path / "tower")
    assert tower.network.model == SIGLIP
    images_BSS3, normal_B3SS = _images(160)
    with torch.inference_mode():
        found = _pooled(_classifier(tower), images_BSS3)
        wanted = ours.forward_head(ours.forward_features(normal_B3SS), pre_logits=True)
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("model", ["test_vit", "test_convnext"])
def test_a_folder_of_timm(tmp_path: Path, model: str) -> None:
    ours = timm_folder(tmp_path / "tower", model)
    tower = _resolved(tmp_path / "tower")
    assert tower.network.preprocess.model_dump() == {
        "size": 160,
        "mean": tuple(MEAN),
        "std": tuple(STD),
        "crop": 0.95,
    }
    images_BSS3, normal_B3SS = _images(160)
    with torch.inference_mode():
        found = _pooled(_classifier(tower), images_BSS3)
        wanted = ours.forward_head(ours.forward_features(normal_B3SS), pre_logits=True)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_another_size_resamples_the_positions(tmp_path: Path) -> None:
    timm_folder(tmp_path / "timm")
    open_clip_folder(tmp_path / "clip")
    for folder, size in (("timm", 96), ("clip", 128)):
        tower = _resolved(tmp_path / folder, size=size)
        assert tower.network.preprocess.size == size
        assert tower.network.preprocess.mean == tuple(MEAN)  # the tower's own
        with torch.inference_mode():
            assert _pooled(_classifier(tower), _images(size)[0]).isfinite().all()


def test_weights_are_converted_once_and_hold_no_head(tmp_path: Path) -> None:
    timm_folder(tmp_path / "tower")
    first = _resolved(tmp_path / "tower").weights
    assert first
    before = first.stat().st_mtime_ns
    assert _resolved(tmp_path / "tower").weights == first
    assert first.stat().st_mtime_ns == before
    assert not [name for name in load_file(first) if name.startswith("head.")]
    assert _resolved(tmp_path / "tower", pretrained=False).weights is None


def test_the_licence_of_the_card(tmp_path: Path) -> None:
    timm_folder(
        tmp_path / "tower",
        licence="other\nlicense_name: Kind Licence 2\nlicense_link: https://x.org",
    )
    origin = _resolved(tmp_path / "tower").origin
    assert (origin.name, origin.format) == ("tower", "timm")
    assert (origin.licence, origin.licence_url) == ("Kind Licence 2", "https://x.org")
    (tmp_path / "tower/README.md").write_text("no front matter")
    assert _resolved(tmp_path / "tower").origin.licence == ""


@pytest.mark.parametrize(
    ("licence", "restricted"),
    [
        ("cc-by-nc-4.0", True),
        ("cc-by-nd-4.0", True),
        ("cc-by-nc-nd-4.0", True),
        ("fair-noncommercial-research-license", True),
        ("apache-2.0", False),
        ("mit", False),
        ("", False),
    ],
)
def test_restricted_licences_stand_in_a_notice(licence: str, restricted: bool) -> None:
    origin = TowerOrigin(name="org/tower", format="timm", licence=licence, revision="abc")
    assert origin.restricted is restricted
    text = "\n".join(origin_lines([origin, origin]))
    assert text.count("weights of org/tower: licence") == 1
    assert ("## NOTICE" in text) is restricted


def _spoil(folder: Path, name: str, change: Any) -> None:
    facts = json.loads((folder / name).read_text())
    change(facts)
    (folder / name).write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["model_cfg"]["vision_cfg"].update(pool_type="avg"),
            r"vision_cfg\.pool_type='avg', which skindx does not",
        ),
        (
            lambda c: c["model_cfg"]["vision_cfg"].update(layers=[3, 4, 6, 3]),
            "ResNets of open_clip are not",
        ),
        (lambda c: c["model_cfg"]["vision_cfg"].update(patch_size=1), "skindx does not build"),
        (lambda c: c["model_cfg"]["vision_cfg"].update(layers=3), "missing, such as blocks.2"),
        (lambda c: c["model_cfg"]["vision_cfg"].update(image_size=10**6), "skindx does not build"),
        (lambda c: c["model_cfg"]["vision_cfg"].update(width=64), "has the shape \\(1"),
        (lambda c: c["model_cfg"].pop("vision_cfg"), "no model_cfg with a vision_cfg"),
        (lambda c: c.pop("preprocess_cfg"), "preprocessing of images \\(mean, std missing\\)"),
    ],
)
def test_a_tower_of_open_clip_that_is_not_understood(
    tmp_path: Path, change: Any, said: str
) -> None:
    open_clip_folder(tmp_path / "tower")
    _spoil(tmp_path / "tower", "open_clip_config.json", change)
    with pytest.raises(UserError, match=said):
        _resolved(tmp_path / "tower")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["pretrained_cfg"].pop("mean"), "\\(mean missing"),
        (lambda c: c.update(model_args={"weights_url": "http://x"}), "is not allowed"),
        (lambda c: c.update(architecture="no_such_net"), "timm has no model 'no_such_net'"),
        (lambda c: c.update(architecture="hf-hub:a/b"), "skindx does not build"),
        (lambda c: (c.pop("architecture"), c.update(model_type="clip")), "it is of transformers"),
        (lambda c: c.update(model_args={"in_chans": 1}), "not in colour"),
    ],
)
def test_a_folder_of_timm_that_is_not_understood(tmp_path: Path, change: Any, said: str) -> None:
    timm_folder(tmp_path / "tower")
    _spoil(tmp_path / "tower", "config.json", change)
    with pytest.raises(UserError, match=said):
        _resolved(tmp_path / "tower")


def test_what_the_user_says_of_the_preprocessing_counts(tmp_path: Path) -> None:
    timm_folder(tmp_path / "tower", mean=None)
    tower = _resolved(tmp_path / "tower", mean=(0.1, 0.1, 0.1), size=96)
    assert tower.network.preprocess.mean == (0.1, 0.1, 0.1)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (sys.exit, ("a pickle was run",))


def test_a_pickle_that_would_run_is_refused(tmp_path: Path) -> None:
    timm_folder(tmp_path / "tower")
    (tmp_path / "tower/model.safetensors").unlink()
    (tmp_path / "tower/pytorch_model.bin").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(UserError, match="are neither safetensors"):
        _resolved(tmp_path / "tower")


def test_a_pickle_of_tensors_is_read(tmp_path: Path) -> None:
    net = timm_folder(tmp_path / "tower")
    (tmp_path / "tower/model.safetensors").unlink()
    torch.save(net.state_dict(), tmp_path / "tower/pytorch_model.bin")
    assert _resolved(tmp_path / "tower").weights


@pytest.mark.parametrize("missing", ["folder", "config", "weights"])
def test_what_is_not_there(tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "tower"
    if missing != "folder":
        timm_folder(folder)
        (folder / {"config": "config.json", "weights": "model.safetensors"}[missing]).unlink()
    said = {
        "folder": "does not exist",
        "config": "is not the folder of a tower",
        "weights": "no file of weights",
    }
    with pytest.raises(UserError, match=said[missing]):
        _resolved(folder)


def test_a_repository_that_cannot_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UserError) as caught:
        resolve_tower("hf-hub:org/tower", pretrained=True, user_args={}, user_preprocess={})
    sentence, download, copy = str(caught.value).splitlines()
    assert sentence.startswith(
        "the Hugging Face model org/tower is not on this machine and could not be fetched (code 1)"
    )
    assert download == "  hf download org/tower --local-dir org--tower"
    assert copy.startswith("  scp -r org--tower ")
    assert copy.endswith(f":{tmp_path}/cache/skindx/towers/")


def test_a_repository_that_was_copied_by_hand(tmp_path: Path) -> None:
    timm_folder(tmp_path / "cache/skindx/towers/org--tower")
    tower = resolve_tower("hf-hub:org/tower", pretrained=True, user_args={}, user_preprocess={})
    assert tower.origin.name == "org/tower"


class _Hub:
    """What the hub's client answers, from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []

    def model_info(self, repository: str) -> Any:
        names = [file.name for file in self.folder.iterdir()]
        siblings = [type("Sibling", (), {"rfilename": name})() for name in names]
        return type("Info", (), {"sha": "0a1b", "siblings": siblings})()

    def hf_hub_download(self, repository: str, name: str, revision: str) -> str:
        assert revision == "0a1b"
        self.fetched.append(name)
        return str(self.folder / name)


def test_only_the_files_of_a_tower_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    timm_folder(tmp_path / "there")
    for name in ("modeling_evil.py", "pytorch_model.bin", "optimizer.pt"):
        (tmp_path / "there" / name).write_bytes(b"no")
    there = _Hub(tmp_path / "there")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: there)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", there.hf_hub_download)
    folder = tmp_path / "cache/skindx/towers/org--tower"
    assert towers.main(["org/tower", str(folder)]) == 0
    assert there.fetched == ["config.json", "model.safetensors", "README.md"]
    tower = resolve_tower("hf-hub:org/tower", pretrained=True, user_args={}, user_preprocess={})
    assert tower.origin.revision == "0a1b"


def test_names_of_towers() -> None:
    assert is_tower("hf-hub:timm/vit_small")
    assert is_tower("local-dir:../x y")
    assert not is_tower("resnet18")
    assert not is_tower("hf-hub:../../etc")


def test_an_attention_pool_needs_a_vision_transformer() -> None:
    from skindx.models.classifier.heads import AttentionPool, put_attention_pool

    with pytest.raises(ValueError, match="plain vision transformer"):
        put_attention_pool(nn.Sequential(), AttentionPool(width=8, heads=1), 3)
