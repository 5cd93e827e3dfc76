"""What needs skindx-methods is refused in one sentence where that is not installed."""

from pathlib import Path

import pytest
from without_kit import Ended, without_kit

from skindx.training.config.run import TrainSettings

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}]
KINDS = {
    "kfac": ("preconditioner 'kfac'", {"recipe": {"preconditioner": {"kind": "kfac"}}}),
}
"""Kind -> how messages name it, and settings with it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each kind, as a training leaves its settings."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, (_, settings) in KINDS.items():
        (folder / kind).mkdir()
        TrainSettings.parse({"members": MEMBERS, **settings}).save(folder / kind / "train.yaml")
    return folder


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[tuple[str, str], Ended]:
    """Return how each command line ended, by kind and what it does with the kind's run."""
    lines: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        goes_on = ["train", "data", "--config", f"{kind}/train.yaml", "--out", kind]
        lines[kind, "train"] = goes_on
        lines[kind, "upgrade"] = ["doctor", "--upgrade", kind]
    return dict(zip(lines, without_kit(*lines.values(), where=folder), strict=True))


def needs(what: str) -> str:
    return (
        f"{what} needs skindx-methods, which is not installed; "
        f"run `pip install {ROOT / 'methods'}`.\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_a_run_are_refused_and_the_run_stays_as_it_was(
    kind: str, folder: Path, ended: dict[tuple[str, str], Ended]
) -> None:
    what, _ = KINDS[kind]
    code, out, err = ended[kind, "train"]
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.endswith(needs(what))
    code, out, err = ended[kind, "upgrade"]
    assert (code, err, out.count("\n")) == (1, "", 1)
    assert out.startswith(f"failed: {kind} (run): ")
    assert out.endswith(needs(what))
    assert [file.name for file in (folder / kind).iterdir()] == ["train.yaml"]
