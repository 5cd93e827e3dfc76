"""The gallery of a bundle: what is in it, what may be shown, and what is nearest."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from tiny_bundle import MODELS, pack_tiny, pack_whole

from skindx.core.errors import UserError
from skindx.data.decisions import Flag, write_flags
from skindx.data.manifest import Record, write_manifest
from skindx.models.bundle.bundle import Bundle, open_bundle
from skindx.models.embedding_index import (
    ROWS,
    TENSORS,
    EmbeddingIndex,
    IndexRow,
    make_embedding_index,
    stratified,
)

Floats = NDArray[np.float32]


def unit(vectors_ND: NDArray[np.floating]) -> Floats:
    lengths = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return (vectors_ND / lengths).astype(np.float32)


def gallery_of(embeddings_ND: Floats, groups: list[int]) -> EmbeddingIndex:
    rows = [IndexRow(f"{n:064x}", "a", group) for n, group in enumerate(groups)]
    return EmbeddingIndex.from_rows(rows, embeddings_ND, [b"x" * (n % 3) for n in range(len(rows))])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return pack_whole(tmp_path_factory.mktemp("whole") / "bundle")


@given(st.integers(0, 30), st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**32))
def test_the_nearest_are_those_of_plain_arithmetic(n: int, groups: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    embeddings_ND = unit(random.normal(size=(n, 8))).reshape(n, 8)
    group_N = random.integers(groups, size=n).tolist()
    asked_D = unit(random.normal(size=(1, 8)))[0]
    near = gallery_of(embeddings_ND, group_N).nearest(asked_D, k)
    stored_ND = embeddings_ND.astype(np.float16).astype(np.float64)
    best = dict.fromkeys(group_N, -2.0)
    for row_D, group in zip(stored_ND, group_N, strict=True):
        best[group] = max(best[group], float(row_D @ asked_D))
    expected = sorted(best.values(), reverse=True)[:k]
    np.testing.assert_allclose([neighbour.cosine for neighbour in near], expected, atol=1e-6)
    assert len({neighbour.row.group for neighbour in near}) == len(near)
    assert all(len(neighbour.thumbnail) == int(neighbour.row.sha256, 16) % 3 for neighbour in near)


def test_a_bundle_gives_its_gallery_back(whole: Bundle) -> None:
    gallery = open_bundle(whole.path).gallery()
    assert gallery is not None
    assert (len(gallery), gallery.spec.pictures, gallery.spec.shown) == (40, 40, 20)
    assert gallery.rows[3] == IndexRow(
        f"{3:064x}", "Basal_Cell_Carcinoma", 1, "CC BY 4.0", "A. Painter"
    )
    assert gallery.thumbnail(3) == b""
    assert gallery.thumbnail(2)[:2] == b"\xff\xd8"
    assert {ROWS, TENSORS} <= set(whole.spec.files)
    # An image of the gallery is nearest to itself.
    near = gallery.nearest(gallery.embeddings_ND[6].float().numpy(), 3)
    assert near[0].row.sha256 == f"{6:064x}"
    assert near[0].cosine == pytest.approx(1, abs=2e-3)
    assert (
        "similar cases: 40 training images, 20 of them may be shown"
        in (whole.path / "MODEL_CARD.md").read_text()
    )


def test_a_bundle_without_its_listed_gallery_is_refused(tmp_path: Path) -> None:
    bundle = pack_whole(tmp_path / "bundle")
    (bundle.path / TENSORS).unlink()
    with pytest.raises(UserError, match=f"{TENSORS} is missing"):
        open_bundle(bundle.path)


def test_parts_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="1 rows, 2 embeddings, 1 thumbnails"):
        EmbeddingIndex.from_rows([IndexRow("0", "a", 0)], np.zeros((2, 3)), [b""])


def test_images_of_a_group_go_together() -> None:
    gallery = gallery_of(unit(np.eye(5)), [0, 1, 0, 2, 2])
    left = gallery.without({f"{2:064x}", "f" * 64})
    assert [row.sha256 for row in left.rows] == [f"{n:064x}" for n in (1, 3, 4)]
    assert [left.thumbnail(n) for n in range(3)] == [gallery.thumbnail(n) for n in (1, 3, 4)]
    np.testing.assert_array_equal(left.embeddings_ND, gallery.embeddings_ND[[1, 3, 4]])
    assert left.without(set()).rows == left.rows


def record(n: int, label: str = "MEL", licence: str = "CC0", **more: str) -> Record:
    path = f"pictures/{n}.jpg"
    return Record(path, f"{n:064x}", "0", 300, 200, label, f"patient {n // 2}", "train",
                  licence=licence, **more)  # fmt: skip


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 80))
def test_a_capped_gallery_keeps_the_shares_of_classes(sizes: list[int], cap: int) -> None:
    records = [
        record(100 * kind + n, label=str(kind)) for kind, size in enumerate(sizes)
        for n in range(size)
    ]  # fmt: skip
    kept = stratified(records, cap)
    assert len(kept) == min(cap, len(records))
    assert kept == [record for record in records if record in kept]
    if cap >= len(sizes):
        for kind, size in enumerate(sizes):
            count = sum(kept_case.label == str(kind) for kept_case in kept)
            assert count >= 1
            assert abs(count - size * len(kept) / len(records)) <= len(sizes)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    folder = tmp_path_factory.mktemp("dataset")
    (folder / "pictures").mkdir()
    credit = {"creator": "A. Painter", "page_url": "https://example.org/7"}
    records = [
        record(0, licence="CC0", page_url="/home/jane/0.jpg"),
        record(1, licence="CC BY 4.0", **credit),
        record(2, licence="CC BY 4.0"),  # nobody to name
        record(3, licence="CC BY-ND 4.0", **credit),
        record(4, licence="where from HAM10000", **credit),
        record(5, licence="CC0", **credit),  # somebody decided: not to be given away
        record(6, licence="CC0", **credit),  # a program saw a face, nobody has decided
    ]
    random = np.random.default_rng(0)
    for stored in records:
        pixels = random.integers(0, 256, (200, 300, 3), dtype=np.uint8)
        exif = Image.Exif()
        exif[0x013B] = "Jane Q. Victim"
        Image.fromarray(pixels).save(folder / stored.path, exif=exif)
    (folder / "decisions.csv").write_text(f"sha256,verdict,by\n{records[5].sha256},remove,me\n")
    write_manifest(folder, records)
    write_flags(folder, [Flag(records[6].sha256, "face", 0.9)], ["face"])
    return folder, records


def test_only_what_may_be_given_away_is_shown(
    whole: Bundle, dataset: tuple[Path, list[Record]]
) -> None:
    folder, records = dataset
    gallery = make_embedding_index(whole.ensemble(), folder, records)
    shown = [n for n in range(len(records)) if gallery.thumbnail(n)]
    assert shown == [0, 1]
    with Image.open(io.BytesIO(gallery.thumbnail(1))) as small:
        assert (small.format, max(small.size)) == ("JPEG", 224)
        assert not small.getexif()
    assert b"Victim" not in b"".join(gallery.thumbnail(n) for n in shown)
    # What a page must not name it cannot name: paths of this disk, and who is on a private image.
    assert [row.page_url for row in gallery.rows] == [
        "", "https://example.org/7", "", "https://example.org/7", "https://example.org/7", "", "",
    ]  # fmt: skip
    assert [row.creator for row in gallery.rows[5:]] == ["", ""]
    assert [row.group for row in gallery.rows] == [0, 0, 1, 1, 2, 2, 3]
    assert [row.label for row in gallery.rows] == ["MEL"] * 7


def test_an_image_is_embedded_as_it_is_served(
    whole: Bundle, dataset: tuple[Path, list[Record]]
) -> None:
    folder, records = dataset
    gallery = make_embedding_index(whole.ensemble(), folder, records, cap=3)
    assert len(gallery) == 3
    with Image.open(folder / records[1].path) as image:
        output = whole.ensemble().predict_with_features([np.array(image.convert("RGB"))])
    near = gallery.nearest(output.embeddings_ND[0], 3)
    assert near[0].cosine == pytest.approx(1, abs=2e-3)
    assert gallery.embeddings_ND.shape == (3, output.embeddings_ND.shape[1])


def test_an_older_bundle_has_no_gallery(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle")
    assert len(bundle.spec.members) == len(MODELS)
    assert bundle.gallery() is None
    assert bundle.ood() is None
