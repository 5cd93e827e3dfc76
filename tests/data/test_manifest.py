from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.layout import MANIFEST
from skindx.data.manifest import (
    SPLITS,
    Issue,
    Record,
    read_issues,
    read_manifest,
    write_issues,
    write_manifest,
)

coordinates = st.floats(0, 4096, width=32)
boxes = st.builds(
    lambda x, y, w, h: Box(x, y, x + w, y + h, "lesion", "painter"),
    *[st.integers(0, 2000)] * 2,
    *[st.integers(1, 2000)] * 2,
)
records = st.builds(
    Record,
    path=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
        lambda path: path[0] != "/" and ".." not in path
    ),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    perceptual_hash=st.text("0123456789abcdef", min_size=16, max_size=16),
    width=st.integers(1, 100_000),
    height=st.integers(1, 100_000),
    label=st.text(),
    group=st.text(),
    split=st.sampled_from(SPLITS),
    boxes=st.none() | st.lists(boxes, max_size=3).map(tuple),
    skin_type=st.none() | st.integers(1, 6),
)


@given(st.lists(records, max_size=5, unique_by=lambda record: record.sha256))
def test_manifest_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[Record]) -> None:
    folder = tmp_path_factory.mktemp("dataset")
    write_manifest(folder, rows)
    assert read_manifest(folder) == rows
    assert [path.name for path in folder.iterdir()] == [MANIFEST]


def test_issues_round_trip(tmp_path: Path) -> None:
    rows = [Issue("http://a/1.jpg", "", "Acne", "dead-link", "404")]
    write_issues(tmp_path, rows)
    assert read_issues(tmp_path) == rows


def test_absent_and_damaged_manifests_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a dataset; run `skindx build`"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("no parquet")
    with pytest.raises(UserError, match="cannot be read"):
        read_manifest(tmp_path)
    write_issues(tmp_path, [])
    (tmp_path / "issues.parquet").rename(tmp_path / MANIFEST)
    with pytest.raises(UserError, match="are missing"):
        read_manifest(tmp_path)


def test_reversed_box_is_refused() -> None:
    with pytest.raises(ValueError, match="x1 < x2"):
        Box(5, 0, 5, 10)
