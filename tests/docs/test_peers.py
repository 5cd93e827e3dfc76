"""Every cell of the table of peers has a test that exists, or a link."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from generators.peers import features, peers, peers_page  # noqa: E402


def test_each_feature_of_ours_has_tests_that_exist():
    rows = features()
    assert len(rows) >= 12
    missing = []
    for row in rows:
        assert row.tests, row.name
        for test in row.tests:
            file, _, function = test.partition("::")
            source = ROOT / file
            if not source.is_file() or f"def {function}(" not in source.read_text("utf-8"):
                missing.append(test)
    assert not missing


def test_each_answer_of_a_peer_has_a_link_of_that_peer():
    names = peers()
    for row in features():
        assert set(row.peers) <= set(names), row.name
        for answer, link in row.peers.values():
            assert answer in ("yes", "in part"), (row.name, answer)
            assert re.fullmatch(r"https://\S+", link), (row.name, link)
    lines = [line for line in peers_page().splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in lines}) == 1
