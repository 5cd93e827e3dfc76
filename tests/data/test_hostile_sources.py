"""Tables, hub folders and API answers that were made to hurt whoever reads them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_site import Answer, LocalSite, jpeg
from paint_images import encode, paint

from skindx.core.errors import UserError
from skindx.data.blocklist import Blocked, BlockList, write_blocklist
from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.layout import BLOCKLIST
from skindx.data.ledger import LedgerRow
from skindx.data.publish.published_rows import web_address
from skindx.data.sources.api import OpenverseSource
from skindx.data.sources.files import FilesSource
from skindx.data.sources.folder import MAX_BYTES, FolderSource, look_at_folder
from skindx.data.sources.huggingface import HuggingFaceSource
from skindx.data.sources.image_source import UnreadablePageError
from skindx.data.sources.url_table import TableSource
from skindx.data.tables.cells import LONGEST

FAST = OriginPolicy(concurrency=8, delay_s=0)


def table_of(tmp_path: Path, name: str, data: bytes) -> TableSource:
    (tmp_path / name).write_bytes(data)
    return TableSource(kind="table", path=tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("deep.jsonl", b'{"url": ' + b"[" * 200_000),
        ("number.jsonl", b'{"url": "x", "label": ' + b"9" * 5000 + b"}"),
        ("field.csv", b'url,label\n"' + b"x" * 200_000 + b'",acne\n'),
        ("torn.csv", "url,label\nx,y\n".encode("utf-16")[:-1]),
        ("latin.csv", b"url,label\nhttp://a.example/\x81,acne\n"),
        ("damaged.csv", "url,label\nä,ü\nö,é\n".encode() + b"\xff,x\n"),
    ],
)
def test_a_table_that_breaks_its_reader_is_one_sentence(
    tmp_path: Path, name: str, data: bytes
) -> None:
    with pytest.raises(UserError, match=name):
        list(table_of(tmp_path, name, data).begin())


def test_a_table_with_a_nul_is_refused(tmp_path: Path) -> None:
    """Programs in C end a text there: what they wrote after it may belong to another cell."""
    source = table_of(tmp_path, "nul.csv", b"url,label\n\0,acne\nhttp://a.example/\0.jpg,acne\n")
    with pytest.raises(UserError, match="NUL bytes"):
        list(source.begin())


def test_a_text_repeated_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A Parquet file of a few kB says 20 MB in each of 5,000 rows: 100 GB if it were unpacked."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), ["x" * 20_000_000])
    urls = [f"http://a.example/{n}.jpg" for n in range(5000)]
    bomb = pa.table({"url": urls, "label": ["acne"] * 5000, "licence": text, "image": text})
    pq.write_table(
        bomb,
        tmp_path / "bomb.parquet",
        compression="zstd",
        store_schema=False,
        write_statistics=False,
        dictionary_pagesize_limit=1 << 30,
    )
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    script = f"""
import resource
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (1_000_000_000,) * 2)
from skindx.data.sources.huggingface import HuggingFaceSource
from skindx.data.sources.url_table import TableSource
columns = {{"label": "label", "licence": "licence"}}
source = TableSource(kind="table", path="bomb.parquet", columns=columns)
rows = [row for _, row in zip(range(12), source.begin())]
assert all(len(row.licence) == {LONGEST} for row in rows), rows[0].status
hub = HuggingFaceSource(kind="huggingface", path=".", columns=columns)
items = hub._items(Path("."), Path("."))
assert sum(1 for _ in zip(range(12), items)) == 12
"""
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr[-2000:]


def not_utf8() -> pa.Array:
    return pa.array([b"\xff\xfe"]).view(pa.string())


@pytest.mark.parametrize(
    "columns",
    [
        {"label": not_utf8()},
        {"label": pa.array([1 << 62], pa.timestamp("us"))},
        {"label": pa.array([["acne"]])},
        {"label": pa.array([{"a": {"b": 1}}])},
        {"label": pa.array([b"\x00\xff"])},
        {"image": pa.array([7])},
        {"image": pa.array([{"bytes": "text", "path": 3}])},
        {"image": pa.array([["a list"]])},
        {"image": not_utf8()},
    ],
    ids=lambda columns: "-".join(f"{name} {array.type}" for name, array in columns.items()),
)
def test_a_shard_of_wrong_types_gives_no_image(
    tmp_path: Path, columns: dict[str, pa.Array]
) -> None:
    image = pa.array([{"bytes": encode(paint(1)), "path": "1.jpg"}])
    whole = {"label": pa.array(["acne"]), "image": image, **columns}
    (tmp_path / "hub").mkdir()
    pq.write_table(pa.table(whole), tmp_path / "hub" / "a.parquet")
    source = HuggingFaceSource(kind="huggingface", path=tmp_path / "hub")
    try:
        (row,) = source.gather(tmp_path / "out")
    except UserError as error:
        assert "a.parquet cannot be read as Parquet" in str(error)  # noqa: PT017
    else:
        assert row.status == "unreadable" if "image" in columns else row.label


def test_a_hub_table_reads_nothing_outside(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    hub.mkdir()
    (tmp_path / "secret.jpg").write_bytes(encode(paint(1)))
    (hub / "large.jpg").write_bytes(encode(paint(1)) + bytes(2000))
    (hub / "circle.jpg").symlink_to("circle.jpg")
    names = [str(tmp_path / "secret.jpg"), "a\0.jpg", "x" * 5000, "circle.jpg", "large.jpg", "."]
    lines = [json.dumps({"file_name": name, "label": "acne"}) for name in names]
    (hub / "metadata.jsonl").write_text("\n".join(lines))
    source = HuggingFaceSource(kind="huggingface", path=hub, max_bytes=2000)
    rows = source.gather(tmp_path / "out")
    assert [row.status for row in rows] == [*["unreadable"] * 4, "too-large", "unreadable"]
    assert rows[0].url == names[0]
    assert not (tmp_path / "out").exists()


def test_a_table_of_files_waits_for_nobody_and_reads_nothing_outside(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    (tmp_path / "secret.jpg").write_bytes(encode(paint(1)))
    os.mkfifo(folder / "pipe.jpg")
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    names = ["pipe.jpg", "link.jpg", "../secret.jpg", "a\0.jpg", "x" * 5000, ".", "gone.jpg"]
    lines = [json.dumps({"file": name, "label": "acne"}) for name in names]
    (folder / "t.jsonl").write_text("\n".join(lines))
    unknown = dict.fromkeys(("licence", "attribution", "group", "skin_type"), "")
    source = FilesSource(kind="files", path=folder / "t.jsonl", columns=unknown)
    statuses = {row.url[:14]: row.status for row in source.gather(tmp_path / "out")}
    refused = dict.fromkeys(("link.jpg", "../secret.jpg", "a\0.jpg", "."), "link-refused")
    assert statuses == refused | dict.fromkeys(("pipe.jpg", "x" * 14, "gone.jpg"), "unreadable")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_photo_by_its_size_is_not_read(tmp_path: Path) -> None:
    for label in ("acne", "wart"):
        (tmp_path / label).mkdir()
        for number in range(3):
            (tmp_path / label / f"{number}.jpg").write_bytes(encode(paint(number)))
    huge = tmp_path / "acne" / "huge.jpg"
    huge.write_bytes(encode(paint(1)))
    with huge.open("r+b") as file:
        file.truncate(MAX_BYTES + 1)
    files = {
        file.path.name: file.status for file in look_at_folder(FolderSource(path=tmp_path)).files
    }
    assert files.pop("huge.jpg") == "too-large"
    assert set(files.values()) == {"stored"}


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"results": ' + b"[" * 100_000,
        b'{"results": [{"url": ' + b"9" * 5000 + b"}]}",
        b'{"results": [1, 2]}',
        b'{"results": {"url": "http://a.example/1.jpg"}}',
        b"\xff\xfe{}",
    ],
)
def test_an_answer_that_breaks_its_reader_is_a_page_that_failed(body: bytes) -> None:
    source = OpenverseSource(kind="openverse", searches={"acne": ("acne",)})
    (page,) = source.begin()
    answer: Any = SimpleNamespace(body=body)
    with pytest.raises(UnreadablePageError):
        list(source.read(page, answer))


def test_an_endless_text_of_an_answer_is_cut() -> None:
    source = OpenverseSource(kind="openverse", searches={"acne": ("acne",)})
    (page,) = source.begin()
    result = {"url": "http://a.example/1.jpg", "creator": "x" * 1_000_000}
    answer: Any = SimpleNamespace(body=json.dumps({"results": [result]}).encode())
    (row,) = source.read(page, answer)
    assert isinstance(row, LedgerRow)
    assert len(row.creator) == LONGEST


def test_an_api_leads_to_no_private_address(tmp_path: Path) -> None:
    """Neither by what it names nor by a redirect, and no other scheme is asked at all."""
    with LocalSite(default=Answer(jpeg("secret"))) as inside, LocalSite() as site:
        hostile = {
            f"{inside.origin}/secret.jpg": "private-address",
            f"http://[::ffff:127.0.0.1]:{inside.port}/x.jpg": "private-address",
            "http://169.254.169.254/latest/meta-data/": "private-address",
            "file:///etc/passwd": "bad-url",
            "data:image/png;base64,AAAA": "bad-url",
            f"http://user:pw@{site.netloc}/x.jpg": "bad-url",
            f"{site.origin}/moved.jpg": "private-address",
        }
        results = [{"url": url, "id": str(n)} for n, url in enumerate(hostile)]
        site.default = Answer(json.dumps({"results": results, "page_count": 1}).encode())
        site.pages["/robots.txt"] = Answer(status=404)
        site.pages["/moved.jpg"] = Answer(b"", 302, {"Location": f"{inside.origin}/moved.jpg"})
        api = f"{site.origin}/v1/images/"
        source = OpenverseSource(kind="openverse", api=api, searches={"acne": ("acne",)})
        fetch = FetchSettings(
            contact="me", origins={site.origin: FAST}, allow_private=(site.netloc,), retries=0
        )
        rows = acquire([source], fetch, tmp_path / "1")
        assert {row.url: row.status for row in rows} == hostile
        # The API's own answer is a redirect: its path is free of robots.txt, its target is not.
        site.default = Answer(b"", 302, {"Location": f"{inside.origin}/v1/images/"})
        with pytest.raises(UserError, match="The host's address is not public"):
            acquire([source], fetch, tmp_path / "2")
        assert inside.asked == []


def test_a_mirror_is_no_way_around_the_guards(tmp_path: Path) -> None:
    """Also of a crawl in parts: the address guard, the block list and robots.txt hold."""
    (tmp_path / "t.csv").write_text(
        "url,label\n"
        "http://in.example/1.jpg,acne\n"
        "http://old.example/blocked.jpg,acne\n"
        "http://old.example/private/2.jpg,acne\n"
        "http://old.example/3.jpg,acne\n"
    )
    with LocalSite(default=Answer(jpeg("x"))) as inside, LocalSite() as site:
        site.pages["/robots.txt"] = Answer(b"User-agent: *\nDisallow: /private/\n")
        site.pages["/3.jpg"] = Answer(jpeg("3"))
        mirror = {
            "http://in.example/": inside.origin + "/",
            "http://old.example/": site.origin + "/",
        }
        source = TableSource(kind="table", path=tmp_path / "t.csv", mirror=mirror)
        fetch = FetchSettings(
            contact="me",
            origins={site.origin: FAST},
            allow_private=(site.netloc,),
            retries=0,
        )
        out = tmp_path / "out"
        out.mkdir()
        blocked = Blocked("a" * 64, ("http://old.example/blocked.jpg",))
        write_blocklist(out / BLOCKLIST, BlockList([blocked]))
        rows = {row.url: row.status for row in acquire([source], fetch, out)}
        assert rows == {
            "http://in.example/1.jpg": "private-address",
            "http://old.example/blocked.jpg": "taken-down",
            "http://old.example/private/2.jpg": "robots",
            "http://old.example/3.jpg": "stored",
        }
        assert inside.asked == []
        assert sorted(site.asked) == ["/3.jpg", "/robots.txt"]


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("https://a.example/1.jpg", True),
        ("https://jane:secret@a.example/", False),
        ("javascript:alert(1)", False),
        ("/home/jane/1.jpg", False),
        ("http://[", False),
    ],
)
def test_published_addresses_hold_no_secret(url: str, given: bool) -> None:
    assert bool(web_address(url)) == given
