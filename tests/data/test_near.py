import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paint_images import paint, save

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.copies import deduplicate
from skindx.data.copies.deduplicate import add_similar, similar_pairs
from skindx.data.image_tables import (
    EMBEDDINGS,
    Embeddings,
    EmbeddingSettings,
    read_embeddings,
    write_embeddings,
)
from skindx.data.manifest import read_issues, read_manifest


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 8))
def test_pairs_are_those_of_brute_force(seed: int, n: int, dimensions: int) -> None:
    vectors = unit(np.random.default_rng(seed).normal(size=(n, dimensions)))
    cosines = vectors.astype(float) @ vectors.T.astype(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplicate, "_QUERIES", 7)
        found = {tuple(pair) for pair in similar_pairs(vectors, 0.5).tolist()}
    # Where the last bit of a float32 decides, either answer is right.
    sure = {(i, j) for i in range(n) for j in range(i + 1, n) if cosines[i, j] > 0.5 + 1e-5}
    possible = {(i, j) for i in range(n) for j in range(i + 1, n) if cosines[i, j] > 0.5 - 1e-5}
    assert sure <= found <= possible


def test_the_threshold_itself_counts_and_pairs_are_sorted() -> None:
    vectors = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8], [0, 1]], np.float32)
    assert similar_pairs(vectors, 1.0).tolist() == [[0, 2], [1, 4]]


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(5, 16)))
    made = Embeddings(tuple("abcde"), vectors, "net, 0123")
    write_embeddings(tmp_path / "e.parquet", made)
    read = read_embeddings(tmp_path / "e.parquet")
    assert (read.sha256s, read.model) == (made.sha256s, made.model)
    assert np.abs(read.vectors_ND - vectors).max() < 1e-3
    assert np.allclose(np.linalg.norm(read.vectors_ND, axis=1), 1)
    assert pq.read_schema(tmp_path / "e.parquet").field("vector").type.value_type == pa.float16()
    known, chosen = read.of(["x", "d", "a"])
    assert known.tolist() == [1, 2]
    assert np.array_equal(chosen, read.vectors_ND[[3, 0]])


def test_what_is_no_table_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    with pytest.raises(UserError, match="skindx dedup embed"):
        read_embeddings(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="no table of embeddings"):
        read_embeddings(path)
    pq.write_table(pa.table({"sha256": ["a"], "vector": [1.0], "model": ["m"]}), path)
    with pytest.raises(UserError, match="no table of embeddings"):
        read_embeddings(path)
    write_embeddings(path, Embeddings(("a", "b"), np.zeros((2, 3), np.float32), "m"))
    with pytest.raises(UserError, match="without a direction"):
        read_embeddings(path)
    table = pa.table({"sha256": ["a", "b"], "vector": [[1.0], [1.0]], "model": ["m", "n"]})
    pq.write_table(table, path)
    with pytest.raises(UserError, match="of 2 models"):
        read_embeddings(path)


def test_links_stand_once_and_the_nearer_wins(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    vectors = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    write_embeddings(path, Embeddings(("a", "b", "c", "d"), vectors, "m"))
    links = np.array([[0, 1, 2], [0, 3, 5], [1, 4, 6]])
    # d comes first in the dataset, x has no embedding.
    both, known = add_similar(links, ["d", "b", "x", "a", "c"], EmbeddingSettings(path=path))
    assert known == 4
    assert both.tolist() == [[0, 1, 2], [0, 3, 0], [0, 4, 0], [1, 4, 6], [3, 4, 0]]
    with pytest.raises(UserError, match="knows none of the 1 images"):
        add_similar(links, ["y"], EmbeddingSettings(path=path))


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"\[audit\]'`"):
        similar_pairs(np.eye(2, dtype=np.float32), 0.9)


def test_a_build_drops_what_its_embeddings_call_the_same(tmp_path: Path) -> None:
    for label, first in (("nevus", 0), ("melanoma", 50)):
        for n in range(8):
            save(tmp_path / "in" / label / f"{n}.jpg", paint(first + n))
    settings = load_build_settings(tmp_path / "in", ["workers=1"])
    build(settings, tmp_path / "a")
    records = {record.source_url: record.sha256 for record in read_manifest(tmp_path / "a")}
    assert len(records) == 16
    # Two nevi are the same to the network, and a nevus and a melanoma; one image it never saw.
    vectors = dict(zip(records.values(), np.eye(16), strict=True))
    vectors[records["nevus/1.jpg"]] = vectors[records["nevus/0.jpg"]]
    vectors[records["melanoma/3.jpg"]] = vectors[records["nevus/2.jpg"]]
    del vectors[records["melanoma/7.jpg"]]
    table = Embeddings(tuple(vectors), np.stack(list(vectors.values())).astype(np.float32), "m")
    write_embeddings(tmp_path / EMBEDDINGS, table)
    second = load_build_settings(
        tmp_path / "in", ["workers=1", f"dedup.embeddings.path={tmp_path / EMBEDDINGS}"]
    )
    summary = build(second, tmp_path / "b")
    assert summary.issues == {"near-duplicate": 1, "conflicting-duplicate": 2}
    assert any("15 of 16 images were compared by embeddings" in note for note in summary.notes)
    gone = {issue.url: issue for issue in read_issues(tmp_path / "b")}
    assert gone.keys() > {"nevus/2.jpg", "melanoma/3.jpg"}
    (dropped,) = gone.keys() - {"nevus/2.jpg", "melanoma/3.jpg"}
    other = {"nevus/0.jpg": "nevus/1.jpg", "nevus/1.jpg": "nevus/0.jpg"}[dropped]
    assert gone[dropped].kept_sha256 == records[other]
    assert load_build_settings(tmp_path / "b" / "recipe.yaml") == second
