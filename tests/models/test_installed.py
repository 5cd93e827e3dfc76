"""A name stands for the bundle of a distribution: located, never imported, never changed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Skindx
from installed_bundles import NEVER, add_metadata, install, package_bundle
from verb_examples import verbs_of

import skindx as public
from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics, add_provenance
from skindx.models.bundle.installed import InstalledPath, bundle_path, installed_bundles

ROOT = Path(__file__).parents[2]
OLDER = Path(__file__).parents[1] / "fixtures" / "v0_2"
BUNDLE = OLDER / "whole" / "bundle"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of modules, and stand in another one."""
    folder, here = tmp_path / "site", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    # What is installed beside skindx itself does not count.
    monkeypatch.setattr("skindx.models.bundle.installed._places", lambda: [str(folder)])
    monkeypatch.chdir(here)
    return folder


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in files}


def test_a_name_is_the_bundle_of_its_distribution(site: Path) -> None:
    place = install(site, BUNDLE)
    found = bundle_path("toy")
    assert found == place
    assert isinstance(found, InstalledPath)
    assert found.installed == "toy"
    assert open_bundle(found).digest == sha256_file(BUNDLE / "bundle.json")
    assert "skindx_toy" not in sys.modules


def test_paths_stay_paths(site: Path) -> None:
    install(site, BUNDLE)
    for text in ("runs/toy", "./toy", "/toy", "toy/", "../toy"):
        assert bundle_path(text) == Path(text)
    assert not isinstance(bundle_path(Path("toy")), InstalledPath)
    Path("bundle").mkdir()  # nothing is installed under this name
    assert bundle_path("bundle") == Path("bundle")


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_called_so_here_is_taken_only_by_its_path(site: Path, kind: str) -> None:
    install(site, BUNDLE)
    planted = Path("toy")
    if kind == "folder":
        planted.mkdir()
    elif kind == "file":
        planted.touch()
    else:
        planted.symlink_to("nowhere")
    with pytest.raises(UserError, match=r"write \./toy for the file or folder"):
        bundle_path("toy")
    assert bundle_path("./toy") == planted


def test_the_name_of_a_released_bundle_is_never_a_folder(site: Path) -> None:
    Path("ham10000").mkdir()
    with pytest.raises(UserError, match=r"write \./ham10000"):
        bundle_path("ham10000")


def test_what_is_not_installed_says_how_it_is_and_what_is(site: Path) -> None:
    install(site, BUNDLE)
    folder = ROOT / "models/ham10000"
    with pytest.raises(UserError, match=rf"\(installed: toy\); run `pip install {folder}`"):
        bundle_path("ham10000")
    with pytest.raises(UserError, match="bundle other does not exist: no folder here"):
        bundle_path("other")


def test_two_distributions_of_one_name_are_refused(site: Path) -> None:
    install(site, BUNDLE)
    add_metadata(site, distribution="evil", version="9.0", package="skindx_toy")
    with pytest.raises(
        UserError,
        match=r"evil 9\.0 and skindx-toy 1\.0 both contain a bundle toy; keep the one that you",
    ):
        bundle_path("toy")


def test_a_broken_one_is_a_sentence_and_the_others_work(site: Path) -> None:
    install(site, BUNDLE, "sound")
    add_metadata(site, "gone")
    add_metadata(site, "dotted", package="os.path")
    empty = site / "skindx_empty"
    empty.mkdir()
    (empty / "__init__.py").write_text(NEVER)
    add_metadata(site, "empty")
    package_bundle(site, BUNDLE, "changed", digest="0" * 64)
    add_metadata(site, "changed")
    sound, broken = installed_bundles()
    assert [one.name for one in sound] == ["sound"]
    assert len(broken) == 4
    for name, reason in {
        "gone": "its package skindx_gone is missing",
        "dotted": "its package os.path is missing",
        "empty": "bundle.json is missing",
        "changed": "DIGEST has 0000000000000000",
    }.items():
        (sentence,) = [text for text in broken if text.startswith(f"the bundle {name} of")]
        assert reason in sentence
        with pytest.raises(UserError, match=reason):
            bundle_path(name)


def test_what_lies_where_somebody_stands_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, BUNDLE)
    monkeypatch.chdir(tmp_path)
    for first in ("", str(tmp_path)):  # of `python -c` and of `python -m`
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        sound, broken = installed_bundles()
        assert "toy" not in {one.name for one in sound}
        assert not [sentence for sentence in broken if sentence.startswith("toy")]


def test_an_editable_installation_is_found_by_its_pth_file(tmp_path: Path) -> None:
    packages, checkout = tmp_path / "packages", tmp_path / "checkout"
    place = package_bundle(checkout, BUNDLE)
    add_metadata(packages)
    (packages / "_skindx_toy.pth").write_text(str(checkout))
    ask = (
        f"import site; site.addsitedir({str(packages)!r})\n"
        "from skindx.models.bundle.installed import bundle_path; print(bundle_path('toy'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == place


BUNDLES = {
    f"{verb} bundle"
    for verb in ("serve", "diagnose", "evaluate", "adapt", "export", "bundle detach", "scan run",
                 "boxes propose", "dedup embed", "features evaluate", "remove")
} | {"compare first", "compare second", "leak first", "leak second", "recompute evaluation",
     "publish source"}  # fmt: skip
OTHER_PATHS = {
    "adapt out", "bundle attach archive", "bundle attach out", "evaluate out", "evaluate internal",
    "compare dataset", "publish out", "export out", "scan run detector",
    "serve detector",
}  # fmt: skip
"""Paths that a help describes by a bundle, and that are none to read."""


def test_every_verb_takes_a_name_where_it_takes_a_bundle() -> None:
    """Whatever is a bundle, by its name or its help, is kept as it was typed until a verb runs."""
    takes = set()
    for verb, command in verbs_of().items():
        for one in command.params:
            if "BundleText" in str(one.type_descriptor.annotation):
                takes.add(f"{verb} {one.name}")
            else:
                assert one.name != "bundle", verb
                is_path = "Path" in str(one.type_descriptor.annotation)
                spoken = "bundle" in (one.help or "").lower() and is_path
                assert not spoken or f"{verb} {one.name}" in OTHER_PATHS, (verb, one.name)
    assert takes >= BUNDLES


def test_every_door_of_the_command_line_resolves_it(
    site: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = install(site, BUNDLE)
    served: list[Path] = []
    monkeypatch.setattr("skindx.ui.serve.serve", lambda bundle, **_: served.append(bundle))
    assert skindx("serve", "toy")[0] == 0
    assert served == [place]
    Path("toy").mkdir()
    code, _, err = skindx("serve", "toy")
    assert (code, err.count("\n")) == (2, 1)
    assert "write ./toy" in err
    code, _, err = skindx("bundle", "detach", "other", "--out", "x.zip")
    assert code == 2
    assert "bundle other does not exist" in err


def test_a_model_is_loaded_by_name(site: Path) -> None:
    install(site, BUNDLE)
    assert public.load("toy").digest == sha256_file(BUNDLE / "bundle.json")


def test_an_installed_bundle_is_evaluated_and_stays(site: Path, skindx: Skindx) -> None:
    place = install(site, BUNDLE)
    before = hashes(site)
    code, _, err = skindx("evaluate", "toy", OLDER / "dataset")
    assert code == 2
    assert "give --out FOLDER" in err
    code, out, err = skindx("evaluate", "toy", OLDER / "dataset", "--out", "figures")
    assert code == 0, err
    assert "has no figures" not in out
    origin = json.loads(Path("figures/metrics.json").read_text())["origin"]
    assert origin["bundle"] == "toy"
    assert origin["bundle_digest"] == open_bundle(place).digest
    assert hashes(site) == before


def test_nothing_changes_an_installed_bundle(site: Path, skindx: Skindx) -> None:
    install(site, BUNDLE)
    before, sha = hashes(site), "0" * 64
    for words in (
        ("export", "toy", "--dataset", OLDER / "dataset", "--to", "onnx"),
        ("remove", OLDER / "dataset", "--sha", sha, "--bundle", "toy"),
    ):
        code, _, err = skindx(*words)
        assert code == 2, words
        assert "the installed bundle toy cannot be changed" in err
    for change in (lambda path: add_provenance(path, {"a": 1}), lambda path: add_metrics(path, {})):
        with pytest.raises(UserError, match="cannot be changed"):
            change(bundle_path("toy"))
    assert hashes(site) == before


def test_an_installed_bundle_is_exported_into_a_copy(
    site: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, BUNDLE)
    before = hashes(site)
    data = OLDER / "dataset"
    code, out, err = skindx("export", "toy", "--dataset", data, "--to", "onnx", "--out", "fast")
    assert code == 0, err
    assert open_bundle(Path("fast")).digest in out.replace("\n", "")
    assert (Path("fast") / "exports").is_dir()
    code, _, _ = skindx("export", "toy", "--dataset", site, "--to", "onnx", "--out", "none")
    assert code == 2
    assert [path.name for path in Path().iterdir()] == ["fast"]
    assert hashes(site) == before
