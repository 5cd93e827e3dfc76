"""Datasets of the Hugging Face hub, read as data from a folder."""

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import GatedRepoError
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.crawl.fetch_settings import FetchSettings
from skindx.data.ledger import LedgerRow
from skindx.data.sources.huggingface import HuggingFaceSource


def read(tmp_path: Path, **settings: Any) -> dict[str, LedgerRow]:
    source = HuggingFaceSource.model_validate({"kind": "huggingface", **settings})
    return {row.url: row for row in acquire([source], FetchSettings(), tmp_path / "out")}


def shard(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(lines), path)


def test_what_the_datasets_library_writes_is_read(tmp_path: Path) -> None:
    images = [encode(paint(seed)) for seed in range(4)]
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["acne", "wart"])
    )
    content = {
        "image": [{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(images)],
        "label": [0, 1, 1, -1],
    }
    made = datasets.Dataset.from_dict(content, features=features)
    (tmp_path / "hub/data").mkdir(parents=True)
    made.to_parquet(tmp_path / "hub/data/train-00000-of-00001.parquet")
    rows = read(tmp_path, path=tmp_path / "hub", licence="CC BY 4.0", attribution="us")
    start = "data/train-00000-of-00001.parquet"
    reported = {url: (row.label, row.status) for url, row in rows.items()}
    assert reported == {
        f"{start}/0/0.jpg": ("acne", "stored"),
        f"{start}/1/1.jpg": ("wart", "stored"),
        f"{start}/2/2.jpg": ("wart", "stored"),
        f"{start}/3/3.jpg": ("", "no-label"),
    }
    row = rows[f"{start}/0/0.jpg"]
    assert (tmp_path / "out" / row.path).read_bytes() == images[0]
    assert (row.licence, row.attribution, row.source) == ("CC BY 4.0", "us", "huggingface:hub")


def test_shards_with_other_columns_and_bad_images(tmp_path: Path) -> None:
    good = encode(paint(1))
    lines = [
        {"pic": good, "dx": "acne", "who": "Ann", "fst": "III", "patient": 7},
        {"pic": b"GIF89a" + bytes(50), "dx": "acne", "who": None, "fst": None, "patient": 7},
        {"pic": None, "dx": "acne", "who": None, "fst": None, "patient": None},
        {"pic": good + bytes(5000), "dx": "wart", "who": None, "fst": "x", "patient": None},
    ]
    shard(tmp_path / "hub/a.parquet", lines)
    columns = {"image": "pic", "label": "dx", "creator": "who", "skin_type": "fst"}
    columns |= {"group": "patient"}
    rows = read(
        tmp_path, path=tmp_path / "hub", columns=columns, creator="them", max_bytes=len(good) + 9
    )
    reported = [(row.status, row.creator, row.skin_type, row.group) for row in rows.values()]
    assert reported == [
        ("stored", "Ann", 3, "7"),
        ("unsupported-format", "them", None, "7"),
        ("unreadable", "them", None, ""),
        ("too-large", "them", None, ""),
    ]
    assert all(row.detail for row in rows.values() if row.status != "stored")


def test_a_metadata_table_names_files_but_none_outside(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    (hub / "train/images").mkdir(parents=True)
    (hub / "train/images/1.jpg").write_bytes(encode(paint(1)))
    (tmp_path / "secret.jpg").write_bytes(encode(paint(2)))
    (hub / "train/link.jpg").symlink_to(tmp_path / "secret.jpg")
    names = ["images/1.jpg", "../../secret.jpg", "link.jpg", "gone.jpg", "", "images"]
    lines = [json.dumps({"file_name": name, "label": "acne"}) for name in names]
    (hub / "train/metadata.jsonl").write_text("\n".join(lines))
    rows = read(tmp_path, path=hub)
    assert {url: row.status for url, row in rows.items()} == {
        "train/images/1.jpg": "stored",
        "train/../../secret.jpg": "unreadable",
        "train/link.jpg": "unreadable",
        "train/gone.jpg": "unreadable",
        "train/row-5": "unreadable",
        "train/images": "unreadable",
    }
    assert "leads out" in rows["train/link.jpg"].detail


def test_a_folder_of_the_hub_becomes_a_dataset(tmp_path: Path) -> None:
    lines = [
        {"image": encode(paint(seed)), "label": label}
        for label, start in (("acne", 0), ("wart", 20))
        for seed in range(start, start + 8)
    ]
    shard(tmp_path / "hub/a.parquet", lines)
    raw = {"name": "x", "workers": 1, "sources": [{"kind": "huggingface"}]}
    raw["sources"][0]["path"] = str(tmp_path / "hub")  # type: ignore[index]
    assert build(BuildSettings.parse(raw), tmp_path / "out").kept == 16
    with pytest.raises(UserError, match="lies inside the source folder"):
        build(BuildSettings.parse(raw), tmp_path / "hub/out")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "either `path`"),
        ({"path": "x", "repo": "a/b"}, "either `path`"),
        ({"repo": "../../etc"}, "pattern"),
    ],
)
def test_one_place_only(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        HuggingFaceSource.model_validate({"kind": "huggingface", **settings})


def test_folders_that_hold_no_dataset_say_so(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    with pytest.raises(UserError, match="is not a folder"):
        read(tmp_path, path=hub)
    hub.mkdir()
    with pytest.raises(UserError, match="kind: folder"):
        read(tmp_path, path=hub)
    shard(hub / "a.parquet", [{"image": b"x", "name": "y"}])
    with pytest.raises(UserError, match=r"no column 'label'; set `columns\.label`"):
        read(tmp_path, path=hub)
    (hub / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(tmp_path, path=hub)
    (tmp_path / "b.parquet").write_bytes(b"x")
    (hub / "a.parquet").unlink()
    (hub / "a.parquet").symlink_to(tmp_path / "b.parquet")
    with pytest.raises(UserError, match="is a link to a file outside the dataset"):
        read(tmp_path, path=hub)


def test_the_hub_is_asked_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE=0"):
        read(tmp_path, repo="some/derm")
    # The hub's cache keeps a snapshot of links into its blobs.
    cache = tmp_path / "datasets--some--derm"
    snapshot = cache / "snapshots/0123abc"
    (cache / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    shard(cache / "blobs/f00", [{"image": encode(paint(1)), "label": "acne"}])
    (snapshot / "train.parquet").symlink_to("../../blobs/f00")
    asked: list[Any] = []

    def download(repo: str, **how: Any) -> str:
        asked.append((repo, how["repo_type"], how["revision"]))
        assert not any("py" in pattern for pattern in how["allow_patterns"])
        return str(snapshot)

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    (row,) = read(tmp_path, repo="some/derm", revision="0123abc").values()
    assert (row.status, row.source) == ("stored", "huggingface:some/derm")
    assert asked == [("some/derm", "dataset", "0123abc")]

    def broken(*_: Any, **__: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with pytest.raises(UserError, match=r"cannot be downloaded .*no route"):
        read(tmp_path, repo="some/derm")

    class Gated(GatedRepoError):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            OSError.__init__(self, "403")

    def gated(*_: Any, **__: Any) -> str:
        raise Gated

    monkeypatch.setattr("huggingface_hub.snapshot_download", gated)
    with pytest.raises(UserError, match=r"request access .* HF_TOKEN"):
        read(tmp_path, repo="some/derm")


def test_splits_of_shards_and_folders_may_be_kept(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "validation", "test")):
        line = {"image": encode(paint(number)), "label": "acne"}
        shard(tmp_path / f"hub/data/{split}-00000-of-00001.parquet", [line])
    kept = read(tmp_path, path=tmp_path / "hub", splits="kept")
    assert [row.split for row in kept.values()] == ["test", "train", "val"]
    merged = read(tmp_path, path=tmp_path / "hub")
    assert {row.split for row in merged.values()} == {""}
