import json
from pathlib import Path

from skindx_bench.data.leak import KINDS, SMALLEST
from skindx_bench.subjects import run_bench

ROOT = Path(__file__).resolve().parents[2]


def test_painted_copies_are_recognised(tmp_path: Path) -> None:
    run_bench("leak", tmp_path / "leak.json", SMALLEST)
    figures = json.loads((tmp_path / "leak.json").read_text())["figures"]
    assert figures["fingerprints"]["value"] == 6
    assert {f"recall of {kind}" for kind in KINDS} <= figures.keys()
    assert figures["recall of mirrored"]["value"] == 1
    assert figures["linked to another group"]["value"] == 0
    low, high = figures["linked to another group"]["spread"]
    assert low == 0 < high


def test_the_wheel_has_what_was_measured() -> None:
    shipped = ROOT / "skindx/evaluation/leak_bound.json"
    assert shipped.read_bytes() == (ROOT / "docs/measured/leak.json").read_bytes()
