"""The bench of the first hour: its figures, and what the guide makes of them."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from guide_pages import ROOT

from skindx.core.untrusted import read_json
from skindx.start.first_estimate import Estimated
from skindx_bench.serve import first_hour
from skindx_bench.serve.first_hour import Config, Step
from skindx_bench.subjects import run_bench

sys.path.insert(0, str(ROOT / "docs"))

from blocks.speed import first_hour as block


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let no command run; return the verbs that would have."""
    verbs: list[str] = []
    one = Estimated(10.0, 2e9)
    new = Step("new", 2.0, 1.0, 1e9, trains="resnet18, all layers")

    def command(words: Sequence[str]) -> None:
        verbs.append(words[1])

    monkeypatch.setattr(first_hour, "_new", lambda *_: (new, (one, one, one)))
    monkeypatch.setattr(first_hour, "_verb", command)
    monkeypatch.setattr(first_hour, "_page", lambda bundle: Step("page", 3.0, 1.0, 1e9))
    monkeypatch.setattr(first_hour, "paint_folder", lambda *_: None)
    return verbs


def test_each_size_has_all_steps_and_a_large_one_is_run_once(
    at_once: list[str], tmp_path: Path
) -> None:
    result = first_hour.run(Config(images=(100, 2000), rounds=2, computed=(90_000,)))
    assert at_once == ["build", "train", "evaluate"] * 3
    assert {key: figure.n for key, figure in result.figures.items() if key.endswith("total_s")} == {
        "100_total_s": 2,
        "2000_total_s": 1,
    }
    assert result.parts["100 page"] == {"seconds": 3.0, "gb": 1.0}
    assert result.parts["90000 train"] == {"expected_s": 10.0, "expected_gb": 2.0}
    assert result.notes[1].startswith("The 9 commands took 0.0")
    result.to_json(tmp_path / "first-hour.json")
    table = block(lambda name: read_json(tmp_path / name)).splitlines()
    assert table[0].startswith("| images | what is trained | new, s | build, s | train, s |")
    assert [row.split(" | ")[0] for row in table[2:5]] == ["| 100", "| 2,000", "| 90,000"]
    assert table[3].endswith("| 1 GB |")
    assert table[4].endswith("| 2 | 10 | 10 | 10 |  | computed: 32 | 2 GB |")


def test_painted_folders_have_ten_classes(tmp_path: Path) -> None:
    first_hour.paint_folder(tmp_path / "images", 20)
    assert len(list((tmp_path / "images").iterdir())) == 10
    assert len({file.read_bytes() for file in (tmp_path / "images").rglob("*.jpg")}) == 20


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_commands_of_sixty_images(tmp_path: Path) -> None:
    result = run_bench("first-hour", tmp_path / "first-hour.json", smallest=True)
    steps = ("new", "build", "train", "evaluate", "page")
    assert [key for key in result.figures if key.endswith("_gb")] == [f"60_{s}_gb" for s in steps]
    assert all(figure.value > 0 for figure in result.figures.values())
