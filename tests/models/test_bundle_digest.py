"""Who made a bundle its own hashes cannot say: its digest is shown, and any other one refused."""

import hashlib
import json
import socket
from pathlib import Path

import pytest
from command_line import Skindx
from forged_bundle import PHOTO, WHOLE, change_index, copy_bundle, forge

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.ui.diagnosis_pool import load_bundle

DATASET = WHOLE.parents[1] / "dataset"
DIGEST = hashlib.sha256((WHOLE / "bundle.json").read_bytes()).hexdigest()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_digest_is_that_of_the_index() -> None:
    assert open_bundle(WHOLE).digest == DIGEST


@pytest.mark.parametrize("expect", [DIGEST, DIGEST.upper(), f"sha256:{DIGEST}", DIGEST[:16]])
def test_the_expected_bundle_opens(expect: str) -> None:
    assert open_bundle(WHOLE, expect).digest == DIGEST


@pytest.mark.parametrize("expect", ["", DIGEST[:15], f"{DIGEST}0", "x" * 64, "0" * 16])
def test_a_short_digest_and_another_one_are_refused(expect: str) -> None:
    with pytest.raises(UserError, match=r"the digest .* is not valid|has the digest"):
        open_bundle(WHOLE, expect)


def test_a_forged_bundle_is_whole_but_not_the_expected_one(tmp_path: Path, skindx: Skindx) -> None:
    """Each verb that judges by a bundle ends with code 2 before anything of it is used."""
    bundle = copy_bundle(tmp_path)
    forge(bundle, "MODEL_CARD.md", b"# another card\n")
    assert open_bundle(bundle).digest != DIGEST
    before = (bundle / "bundle.json").read_bytes()
    for arguments in (
        ("diagnose", str(bundle), str(PHOTO)),
        ("evaluate", str(bundle), str(DATASET), "--out", str(tmp_path / "out")),
        ("serve", str(bundle), "--port", str(_free_port())),
    ):
        code, out, err = skindx(*arguments, "--expect", DIGEST)
        assert (code, out) == (2, "")
        assert "another bundle" in err
        assert len(err.splitlines()) == 1
    assert (bundle / "bundle.json").read_bytes() == before
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="another bundle"):
        load_bundle(bundle, "0" * 64, DIGEST)


def test_a_diagnosis_names_the_digest(tmp_path: Path, skindx: Skindx) -> None:
    code, out, err = skindx("diagnose", str(WHOLE), str(PHOTO), "--json", "--expect", DIGEST[:20])
    assert code == 0, err
    assert json.loads(out)["source"]["digest"] == DIGEST


def test_an_evaluation_leaves_the_digest_and_has_one_of_its_own(
    tmp_path: Path, skindx: Skindx
) -> None:
    bundle, out = copy_bundle(tmp_path), tmp_path / "out"
    code, said, err = skindx(
        "evaluate", str(bundle), str(DATASET), "--out", str(out), "--expect", DIGEST
    )
    assert code == 0, err
    assert json.loads((out / "metrics.json").read_text())["origin"]["bundle_digest"] == DIGEST
    assert DIGEST in (out / "report.html").read_text()
    evaluated = open_bundle(bundle)
    assert evaluated.digest == DIGEST
    assert f"bundle: digest {DIGEST}, unchanged" in said
    assert f"evaluation digest {evaluated.evaluation}" in said
    for expect in (DIGEST, evaluated.evaluation):
        code, out, err = skindx("diagnose", str(bundle), str(PHOTO), "--json", "--expect", expect)
        assert code == 0, err
        source = json.loads(out)["source"]
        assert (source["digest"], source["evaluation"]) == (DIGEST, evaluated.evaluation)


def test_a_key_that_stands_twice_has_no_digest_for_two(tmp_path: Path) -> None:
    """A second `files` would be what other readers of the same bytes see."""
    bundle = copy_bundle(tmp_path)
    index = bundle / "bundle.json"
    index.write_text(index.read_text().replace('"format": 1,', '"format": 1, "format": 1,'))
    with pytest.raises(UserError, match="'format' occurs twice"):
        open_bundle(bundle)
    change_index(bundle, ("format",), 1)
    assert open_bundle(bundle)
