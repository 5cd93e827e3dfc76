"""Each of the 22 published systems has one home, a test and a measured figure."""

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from generators.systems import systems  # noqa: E402


def test_there_are_22_and_each_has_one_home():
    names = Counter(system.name for system in systems())
    assert len(names) == 22, sorted(names)
    assert max(names.values()) == 1


def test_the_test_and_the_figure_of_each_exist():
    missing = [
        f"{system.name}: {path}"
        for system in systems()
        for path in (system.test, system.figure)
        if not (ROOT / path).exists()
    ]
    assert not missing


def test_a_paper_has_authors_and_a_year():
    odd = [
        s.paper for s in systems() if not any(f" {year}" in s.paper for year in range(1990, 2027))
    ]
    assert not odd
