"""`skindx publish BUNDLE --as NAME`: a distribution that pip installs, or a refusal and nothing."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from command_line import Skindx
from tiny_bundle import SAYS, USE
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.atomic_files import sha256_file
from skindx.evaluation.release import recompute_release
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import _changed, _rewrite
from skindx.models.bundle.installed import IN_CHECKOUT

OLDER = Path(__file__).parents[1] / "fixtures" / "v0_2"
DATA = OLDER / "dataset"


def run_folder(folder: Path, use: object = USE) -> Path:
    """Return a bundle that says what it may be used for, in a run of its own."""
    older = open_bundle(OLDER / "whole" / "bundle")
    _rewrite(_changed(older, {"use": use}), {}, None, out=folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle beside the evaluation of its release and two examples."""
    bundle = run_folder(tmp_path_factory.mktemp("run"))
    result = CliRunner().invoke(app, ["evaluate", str(bundle), str(DATA), "--release"])
    assert result.exit_code == 0, result.output
    examples = bundle.parent / "examples"
    examples.mkdir()
    (examples / "one.jpg").write_bytes(b"a photo")
    (examples / "examples.yaml").write_text("[]\n")
    return bundle


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_built_installed_and_found(released: Path, here: Path, skindx: Skindx) -> None:
    code, out, err = skindx("publish", released, "--as", "my-moles", "--version", "2.1", "--rows")
    assert code == 0, err
    assert "pip install ./skindx-my-moles, then skindx serve my-moles" in out.replace("\n", " ")
    folder, digest = here / "skindx-my-moles", sha256_file(released / "bundle.json")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == ("skindx-my-moles", "2.1")
    assert project["license"] == "CC-BY-NC-4.0"
    assert "dependencies" not in project  # on an index a stranger could take it
    assert "Painter A. Moles. 2018" in (folder / "LICENSE").read_text()
    readme = (folder / "README.md").read_text()
    assert SAYS in readme
    assert "## Measured on the test images" in readme
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", here / "built"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (wheel,) = (here / "built").iterdir()
    with zipfile.ZipFile(wheel) as archive:  # what pip does with it
        archive.extractall(here / "site")
    shutil.rmtree(folder)  # what is found is the wheel's
    environment = {**os.environ, "PYTHONPATH": str(here / "site")}
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "skindx", "models", "--json"],
        cwd=here, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    (found,) = [one for one in json.loads(listed.stdout)["bundles"] if one["name"] == "my-moles"]
    package = here / "site/skindx_my_moles"
    assert found["folder"] == str(package / "bundle")
    assert found["digest"] == digest == open_bundle(package / "bundle").digest
    assert (found["distribution"], found["version"]) == ("skindx-my-moles", "2.1")
    assert found["use"] == SAYS
    assert found["not_for"] == list(USE.not_for)
    figures = json.loads((released.parent / "release/metrics.json").read_text())
    assert found["images"] == figures["pictures"]
    assert found["figures"]["top1"] == {
        key: figures["ensemble"]["top1"][key] for key in ("value", "low", "high")
    }
    assert not recompute_release(package / "release").differing
    assert (package / "examples/one.jpg").read_bytes() == b"a photo"


def test_the_list_reads_as_sentences(
    released: Path, here: Path, skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    from installed_bundles import add_metadata, install

    assert skindx("publish", released, "--as", "moles", "--out", "site")[0] == 0
    site = here / "site"
    add_metadata(site, "moles")
    add_metadata(site, "broken")
    install(site, OLDER / "whole" / "bundle", "older")
    monkeypatch.syspath_prepend(site)
    code, out, err = skindx("models")
    assert code == 0, err
    keys = open_bundle(released).taxonomy.keys
    top1 = json.loads((released.parent / "release/metrics.json").read_text())["ensemble"]["top1"]
    shown = f"top-1 {100 * top1['value']:.1f} % [{100 * top1['low']:.1f} %, "
    for part in (
        f"moles (skindx-moles 1.0), digest {sha256_file(released / 'bundle.json')[:16]}\n",
        f"classes: {', '.join(keys)}\n",
        "licence: CC-BY-NC-4.0 (https://creativecommons.org/licenses/by-nc/4.0/)\n",
        shown,
        f"{SAYS}\n",
        "older (skindx-older 1.0)",
        "licence: not stated",
        "it brings no evaluation of this bundle",
        "note: the bundle broken of skindx-broken 1.0 cannot be used: its package skindx_broken is "
        "missing; install it again.",
    ):
        assert part in out, part
    assert not (site / "skindx_moles/release/rows.parquet").exists()


def test_without_any_it_says_so(skindx: Skindx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.models.bundle.installed._entries", list)
    code, out, _ = skindx("models")
    assert code == 0
    assert out.startswith("No bundle is installed. In a checkout `make` installs models/ham10000")
    assert json.loads(skindx("models", "--json")[1]) == {"bundles": [], "problems": []}


def refused(here: Path, skindx: Skindx, *words: object) -> str:
    before = sorted(here.rglob("*"))
    code, _, err = skindx("publish", *words)
    assert (code, err.count("\n")) == (2, 1), err
    assert sorted(here.rglob("*")) == before
    return err


def test_it_is_refused_without_licence_card_and_evaluation(
    released: Path, here: Path, skindx: Skindx
) -> None:
    assert "the name of its package is missing" in refused(here, skindx, released)
    assert "is not valid; give at most" in refused(here, skindx, released, "--as", "My Moles")
    assert "is not valid; give a version" in refused(
        here, skindx, released, "--as", "a", "--version", "new"
    )
    silent = run_folder(here / "silent", None)
    assert "no evaluation of its release" in refused(here, skindx, silent, "--as", "a")
    shutil.copytree(released.parent / "release", here / "silent/release")
    assert "has no licence of use" in refused(here, skindx, silent, "--as", "a")
    other = run_folder(here / "other", USE.model_copy(update={"not_for": ("nails",)}))
    shutil.copytree(released.parent / "release", here / "other/release")
    assert "belongs to the digest" in refused(here, skindx, other, "--as", "a")
    kept = run_folder(here / "kept", USE.model_copy(update={"licence": "all rights reserved"}))
    shutil.copytree(released.parent / "release", here / "kept/release")
    assert "does not allow publishing it" in refused(here, skindx, kept, "--as", "a")


def test_nothing_of_another_project_is_replaced(released: Path, here: Path, skindx: Skindx) -> None:
    mine = here / "mine"
    mine.mkdir()
    (mine / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    error = refused(here, skindx, released, "--as", "mine", "--out", "mine")
    assert "the pyproject.toml of another project" in error
    (mine / "pyproject.toml").unlink()
    assert skindx("publish", released, "--as", "mine", "--out", "mine")[0] == 0
    assert skindx("publish", released, "--as", "mine", "--out", "mine", "--version", "2.0")[0] == 0
    assert 'version = "2.0"' in (mine / "pyproject.toml").read_text()


def test_options_of_the_other_kind_are_refused(released: Path, here: Path, skindx: Skindx) -> None:
    words = (released, "--as", "a", "--contact", "mail@example.org")
    assert "only --as" in refused(here, skindx, *words)
    assert "is not a bundle, and --as" in refused(here, skindx, DATA, "--as", "a")
    assert "add --out" in refused(here, skindx, DATA)


BOX = Path(__file__).parents[2] / "models/ham10000"


def test_the_released_bundle_is_the_one_whose_digest_is_committed() -> None:
    package = BOX / "skindx_ham10000"
    project = tomllib.loads((BOX / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["skindx.bundles"] == {"ham10000": "skindx_ham10000"}
    if not (package / "bundle/bundle.json").is_file():
        pytest.skip("the checkout holds no released bundle yet")
    bundle = open_bundle(package / "bundle")
    assert (package / "DIGEST").read_text() == f"{bundle.digest}\n"
    size = sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())
    assert size <= 30_000_000
    assert bundle.spec.detector is None  # whose weights would be under the AGPL-3.0
    assert bundle.spec.use
    assert bundle.spec.use.licence == project["license"]
    assert bundle.evaluation
    origin = json.loads((package / "release/metrics.json").read_text())["origin"]
    assert origin["bundle_digest"] == bundle.digest
    listed = yaml.safe_load((package / "examples/examples.yaml").read_text())
    photos = listed["examples"] if isinstance(listed, dict) else listed
    assert len(photos) == len(list((package / "examples").glob("*.jpg"))) == 12
    for photo in photos:
        assert sha256_file(package / "examples" / photo["file"]) == photo["sha256"]
        assert photo["credit"]


def test_every_name_in_the_checkout_is_known_and_installed_by_make() -> None:
    found = {file.parent.name for file in BOX.parent.glob("*/pyproject.toml")}
    assert found == IN_CHECKOUT.keys()
    made = subprocess.run(
        ["make", "-n", "-W", "pyproject.toml", "install", "dist"], cwd=BOX.parents[1],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "--editable ./models/ham10000" in made.stdout
    assert "for box in models/ham10000" in made.stdout
