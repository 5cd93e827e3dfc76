from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skindx.core.errors import UserError
from skindx.data.copies.deduplicate import DedupSettings
from skindx.data.copies.hash_links import EQUAL, centres, near_graph, with_pairs
from skindx.data.embedding_files import (
    Embeddings,
    read_embeddings,
    write_embeddings,
)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(5, 16)))
    made = Embeddings(tuple("abcde"), vectors, "net, 0123")
    write_embeddings(tmp_path / "e.parquet", made)
    read = read_embeddings(tmp_path / "e.parquet")
    assert (read.sha256s, read.model) == (made.sha256s, made.model)
    assert np.abs(read.vectors_ND - vectors).max() < 1e-3
    assert np.allclose(np.linalg.norm(read.vectors_ND, axis=1), 1)
    assert pq.read_schema(tmp_path / "e.parquet").field("vector").type.value_type == pa.float16()
    known, chosen = read.select(["x", "d", "a"])
    assert known.tolist() == [1, 2]
    assert np.array_equal(chosen, read.vectors_ND[[3, 0]])


def test_what_is_no_table_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    with pytest.raises(UserError, match="skindx dedup embed"):
        read_embeddings(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a table of embeddings"):
        read_embeddings(path)
    pq.write_table(pa.table({"sha256": ["a"], "vector": [1.0], "model": ["m"]}), path)
    with pytest.raises(UserError, match="not a table of embeddings"):
        read_embeddings(path)
    write_embeddings(path, Embeddings(("a", "b"), np.zeros((2, 3), np.float32), "m"))
    with pytest.raises(UserError, match="vectors that are all zero"):
        read_embeddings(path)
    table = pa.table({"sha256": ["a", "b"], "vector": [[1.0], [1.0]], "model": ["m", "n"]})
    pq.write_table(table, path)
    with pytest.raises(UserError, match="of one model"):
        read_embeddings(path)


def test_the_best_of_equal_images_stands_for_them_and_for_their_neighbours() -> None:
    links = np.array([[0, 1, EQUAL], [0, 2, EQUAL], [0, 3, 5], [3, 4, 6]])
    near = near_graph(5, links, radius=5)
    assert centres(near, np.array([2, 4, 3, 1, 0])).tolist() == [2, 2, 2, 2, 4]
    assert centres(near, np.array([3, 4, 0, 1, 2])).tolist() == [3, 3, 3, 3, 4]


def test_links_stand_once_and_the_nearer_wins() -> None:
    links, pairs = np.array([[0, 1, 2], [0, 3, 5], [1, 4, 6]]), np.array([[0, 3], [0, 4], [3, 4]])
    both = with_pairs(links, pairs)
    assert both.tolist() == [[0, 1, 2], [0, 3, 0], [0, 4, 0], [1, 4, 6], [3, 4, 0]]


def test_a_recipe_of_an_older_version_is_read_or_says_what_to_do() -> None:
    assert DedupSettings.parse({"radius": 3, "embeddings": None}) == DedupSettings(radius=3)
    with pytest.raises(UserError, match=r"removed in skindx 1\.0; use `copies`"):
        DedupSettings.parse({"embeddings": {"path": "e.parquet"}})
