"""A bundle without its trunk, and the same bundle again."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_bundle import measured
from tower_folders import timm_folder

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import Bundle, open_bundle, pack
from skindx.models.bundle.bundle_changes import add_metrics
from skindx.models.bundle.bundle_index import MemberSpec
from skindx.models.bundle.detach import attach, detach
from skindx.models.classifier.head_kinds import MlpHead
from skindx.models.classifier.pretrained import Trunk, open_trunk
from skindx.models.towers import Tower, resolve_tower
from skindx.taxonomy import load_taxonomy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _packed(folder: Path) -> tuple[Bundle, Trunk]:
    """Pack two heads of random weights on the tower in FOLDER/tower."""
    timm_folder(folder / "tower", licence="cc-by-nc-nd-4.0")
    own = {"size": 64}
    tower: Tower = resolve_tower(
        f"local-dir:{folder / 'tower'}", pretrained=True, user_args={}, user_preprocess=own
    )
    assert tower.weights
    trunk = open_trunk(tower.network, tower.weights)
    taxonomy = load_taxonomy("isic9")
    count = len(taxonomy.keys)
    line = {"head.weight": torch.randn(count, 64), "head.bias": torch.zeros(count)}
    hidden = {
        "head.fc1.weight": torch.randn(8, 64),
        "head.fc1.bias": torch.zeros(8),
        "head.fc2.weight": torch.randn(count, 8),
        "head.fc2.bias": torch.zeros(count),
    }
    mlp = tower.network.model_copy(update={"head": MlpHead(width=8)})
    more: dict[str, Any] = {"tower": tower.origin, "trunk": trunk.key}
    members = [
        (MemberSpec(name="line", classifier=tower.network, **more), {**trunk.state, **line}),
        (MemberSpec(name="hidden", classifier=mlp, **more), {**trunk.state, **hidden}),
    ]
    bundle = pack(folder / "bundle", "two", taxonomy, members, trunks={trunk.key: trunk.state})
    return bundle, trunk


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_attached_it_is_the_same_to_the_byte(tmp_path: Path, skindx: Any) -> None:
    bundle, trunk = _packed(tmp_path)
    bundle = add_metrics(bundle.path, measured(0.5))
    archive = tmp_path / "two.zip"
    code, said, _ = skindx("bundle", "detach", bundle.path, "--out", archive)
    assert (code, "without tower" in said) == (0, True)
    names = set(zipfile.ZipFile(archive).namelist())
    assert names == {*bundle.spec.files, *bundle.beside, "bundle.json", "detached.json"} - {
        f"trunks/{trunk.key}.safetensors"
    }
    code, _, error = skindx("diagnose", archive, tmp_path / "photo.jpg")
    assert code == 2
    assert "two.zip has no trunk; add it with `skindx bundle attach`." in error
    code, said, _ = skindx(
        "bundle", "attach", archive, "--tower", f"local-dir:{tmp_path / 'tower'}",
        "--out", tmp_path / "again",
    )  # fmt: skip
    assert code == 0
    assert bundle.digest in said
    assert _files(tmp_path / "again") == _files(bundle.path)
    images = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    for one, other in zip(
        bundle.ensemble().members, open_bundle(tmp_path / "again").ensemble().members, strict=True
    ):
        with torch.inference_mode():
            assert one.classifier(images).equal(other.classifier(images))


def test_other_weights_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    bundle, _ = _packed(tmp_path)
    archive = tmp_path / "two.zip"
    detach(bundle.path, archive)
    (weights,) = (tmp_path / "cache/skindx/weights").glob("tower-*.safetensors")
    changed = {name: tensor + 1e-4 for name, tensor in load_file(weights).items()}
    save_file(changed, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="are not the trunk tower"):
        attach(archive, tmp_path / "again", weights=tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="--tower local-dir:FOLDER"):
        attach(archive, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    thesis = tmp_path / "again" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\), which a bundle would"):
        attach(archive, tmp_path / "again", weights=weights)
    assert thesis.read_text() == "years of work"
    thesis.unlink()
    for _ in range(2):  # an empty folder, then an earlier bundle
        assert attach(archive, tmp_path / "again", weights=weights).digest == bundle.digest
    thesis.write_text("years of work")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        attach(archive, tmp_path / "again", weights=weights)
    assert thesis.exists()


def test_a_bundle_without_a_trunk_has_none_to_detach(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no trunk to detach"):
        detach(tiny_bundle, tmp_path / "no.zip")
    assert not (tmp_path / "no.zip").exists()


def _forged(archive: Path, out: Path, change: str) -> None:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            data, how = old.read(entry), zipfile.ZIP_STORED
            if entry.filename == "taxonomy.yaml":
                if change == "missing":
                    continue
                if change == "altered":
                    data += b"\n"
                if change == "packed":
                    how = zipfile.ZIP_DEFLATED
            new.writestr(entry.filename, data, how)
        if change == "more":
            new.writestr("../evil", b"x")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("missing", "has other files than its index lists"),
        ("more", "has other files than its index lists"),
        ("packed", "which does not belong in a bundle"),
        ("altered", "was altered"),
    ],
)
def test_a_forged_archive(tmp_path: Path, change: str, said: str) -> None:
    bundle, _ = _packed(tmp_path)
    detach(bundle.path, tmp_path / "two.zip")
    _forged(tmp_path / "two.zip", tmp_path / "forged.zip", change)
    with pytest.raises(UserError, match=said):
        attach(tmp_path / "forged.zip", tmp_path / "again", tower=f"local-dir:{tmp_path / 'tower'}")
    assert not (tmp_path / "again").exists()


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no")
    with pytest.raises(UserError, match="is not a complete archive of"):
        attach(tmp_path / "x.zip", tmp_path / "again")
