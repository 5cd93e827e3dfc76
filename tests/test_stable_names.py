"""What 1.0 promises to keep is there, and what goes has warned for one minor version."""

import re
import warnings

import pytest
from command_line import Skindx
from stable_names import LISTED, stable_names

import skindx
from skindx.core import errors
from skindx.core.errors import DEPRECATED, DeprecatedName, Deprecation, deprecated


def _minor(version: str) -> tuple[int, int]:
    major, minor, *_ = map(int, re.findall(r"\d+", version))
    return major, minor


def test_no_stable_name_is_gone() -> None:
    listed = LISTED.read_text(encoding="utf-8").split("\n")[:-1]
    gone = sorted(set(listed) - set(stable_names()))
    assert not gone, (
        f"{len(gone)} stable names are gone: {', '.join(gone[:5])}. Bring them back, or keep them "
        "for one minor version with a line in DEPRECATED of skindx/core/errors.py; what has warned "
        f"long enough goes together with its line of {LISTED.name}."
    )
    assert listed == sorted(set(listed)), f"sort {LISTED.name}: stable_names.py writes it"


def test_each_kind_of_name_is_on_the_list() -> None:
    listed = set(LISTED.read_text(encoding="utf-8").splitlines())
    assert {
        *("python skindx.load digest", "python skindx.Model.predict", "verb train --config"),
        *("setting train exchange(gtopk).density", "setting recipe split.folds"),
        *("setting bundle.json members[].temperature", "column manifest.parquet label"),
        *("http POST /v1/diagnose", "metric skindx_cases_total", "verb scan run --scale"),
    } <= listed
    assert not [name for name in listed if name.startswith("verb bench")]


def test_what_goes_warns_for_a_minor_version() -> None:
    now = _minor(skindx.__version__)
    for name, of in DEPRECATED.items():
        since, goes = _minor(of.since), _minor(of.goes)
        assert since < goes, name
        assert goes[0] > since[0] or goes[1] - since[1] >= 1, name
        assert now < goes, f"{name} was to go with {of.goes}: take it and its line away"


def test_a_deprecated_name_warns_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    going = {"skindx.old": Deprecation("use skindx.new", "1.0", "1.1")}
    monkeypatch.setattr(errors, "DEPRECATED", going)
    with pytest.warns(
        DeprecatedName, match=r"^skindx\.old will be removed in skindx 1\.1; use skindx\.new\."
    ):
        deprecated("skindx.old")


def test_the_command_line_prints_it_as_a_note(
    skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skindx.doctor.examine", list)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = skindx("doctor", "--no-prebuild")
    assert code == 0
    assert err == (
        "note: skindx doctor --no-prebuild will be removed in skindx 1.2; "
        "remove it, because it has no effect.\n"
    )
