"""Tables of URLs: columns, checksums, mirrors, and what becomes of bad lines."""

import csv
import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local_site import Answer, LocalSite, jpeg

from skindx.core.errors import UserError
from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.ledger import LedgerRow
from skindx.data.sources.columns import skin_type
from skindx.data.sources.url_table import TableSource
from skindx.data.tables.cells import cell

COLUMNS = {"url": "where", "label": "what", "md5": "sum", "key": "id", "skin_type": "tone"}
FAST = OriginPolicy(concurrency=8, delay_s=0)


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def write(path: Path, lines: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for line in lines for key in line)))
        writer.writeheader()
        writer.writerows(lines)
    return path


def table(path: Path, **settings: Any) -> TableSource:
    given = {"kind": "table", "path": path, "columns": COLUMNS} | settings
    return TableSource.model_validate(given)


def line(number: int, where: str, total: str = "", **more: str) -> dict[str, str]:
    known = {"id": f"k{number}", "where": where, "what": "acne", "sum": total, "tone": "-1"}
    return known | more


def begin(source: TableSource) -> list[LedgerRow]:
    return list(source.begin())


def test_each_line_becomes_what_it_deserves(tmp_path: Path) -> None:
    old = "https://atlas.example/img"
    with LocalSite({f"/{n}.jpg": Answer(jpeg(str(n))) for n in range(9)}) as site:
        path = write(
            tmp_path / "t.csv",
            [
                line(0, f"{old}/0.jpg", md5(jpeg("0")).upper(), tone="4"),
                line(1, f"{old}/1.jpg", md5(jpeg("other"))),
                line(2, ""),
                line(3, "ftp://atlas.example/3.jpg"),
                line(4, f"{old}/gone.jpg", md5(b"")),
                line(5, f"{old}/5.jpg", what=""),
                line(6, f"{old}/6.jpg", what="eczema"),
                line(7, f"{old}/6.jpg", what="wart"),
                line(8, f"{site.origin}/8.jpg"),
            ],
        )
        source = table(
            path, licence="CC0", mirror={"https://": "bad:", f"{old}/": site.origin + "/"}
        )
        fetch = FetchSettings(origins={site.origin: FAST}, allow_private=(site.netloc,))
        rows = acquire([source], fetch, tmp_path / "out")
        asked = Counter(site.asked)
        site.asked.clear()
        assert acquire([source], fetch, tmp_path / "out") == rows
        assert site.asked == []
        # What the table says now is what counts: a corrected checksum is a new question.
        write(path, [line(1, f"{old}/1.jpg", md5(jpeg("1")))])
        (corrected, *_) = [
            r for r in acquire([source], fetch, tmp_path / "out") if "1.jpg" in r.url
        ]
    assert (corrected.status, corrected.md5) == ("stored", md5(jpeg("1")))
    reported = {(row.url.removeprefix(old), row.label): row for row in rows}
    assert {key: row.status for key, row in reported.items()} == {
        ("/0.jpg", "acne"): "stored",
        ("/1.jpg", "acne"): "md5-mismatch",
        ("t.csv#k2", "acne"): "no-url",
        ("ftp://atlas.example/3.jpg", "acne"): "bad-url",
        ("/gone.jpg", "acne"): "dead-link",
        ("/5.jpg", ""): "no-label",
        ("/6.jpg", "eczema"): "stored",
        ("/6.jpg", "wart"): "stored",
        (f"{site.origin}/8.jpg", "acne"): "stored",
    }
    assert (reported["/0.jpg", "acne"].skin_type, reported["/1.jpg", "acne"].skin_type) == (4, None)
    assert {row.source for row in rows} == {"table:t.csv"}
    assert {row.licence for row in rows} == {"CC0"}
    assert asked["/6.jpg"] == asked["/8.jpg"] == asked["/1.jpg"] == 1
    assert asked["/5.jpg"] == 0
    wrong = reported["/1.jpg", "acne"]
    assert md5(jpeg("1")) in wrong.detail
    assert (wrong.sha256, wrong.path) == ("", "")
    stored = {file.read_bytes() for file in (tmp_path / "out/store").rglob("*.jpg")}
    assert stored == {jpeg(name) for name in "0681"}  # the 1 by its corrected checksum


def test_csv_jsonl_and_parquet_say_the_same(tmp_path: Path) -> None:
    lines = [
        {"url": "https://a.org/1.jpg", "label": "acne", "who": "Ann", "tone": "3", "p": "P1"},
        {"url": "", "label": "wart", "who": "", "tone": "-1", "p": ""},
    ]
    write(tmp_path / "t.csv", lines)
    (tmp_path / "t.jsonl").write_text(
        '\ufeff{"url": "https://a.org/1.jpg", "label": "acne", "who": "Ann", "tone": 3, "p": "P1"}'
        "\n\n"
        '{"url": null, "label": "wart", "who": null, "tone": -1, "p": null}\n'
    )
    columns = {name: [values[name] or None for values in lines] for name in lines[0]}
    numbers = {"tone": pa.array([3.0, float("nan")])}
    pq.write_table(pa.table(columns | numbers), tmp_path / "t.parquet")
    reported = []
    for suffix in ("csv", "jsonl", "parquet"):
        source = TableSource.model_validate(
            {
                "kind": "table",
                "path": tmp_path / f"t.{suffix}",
                "creator": "unknown",
                "columns": {"creator": "who", "skin_type": "tone", "group": "p"},
            }
        )
        reported.append(
            [(r.label, r.status, r.creator, r.skin_type, r.group) for r in begin(source)]
        )
    assert reported[0] == reported[1] == reported[2]
    assert reported[0] == [("acne", "", "Ann", 3, "P1"), ("wart", "no-url", "unknown", None, "")]


def test_rows_without_url_and_key_are_named_by_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"url": "", "label": "a"}, {"url": "", "label": "a"}])
    rows = begin(TableSource(kind="table", path=path))
    assert [row.url for row in rows] == ["t.csv#row-1", "t.csv#row-2"]


@pytest.mark.parametrize(
    ("content", "settings", "said"),
    [
        ("url,label\n", {}, "has no rows"),
        ("", {}, "no column 'label'"),
        ("url,name\nx,y\n", {}, r"no column 'label'; set `columns\.label` .*: url, name\.$"),
        ("url,label\nx,y\n", {"sha256": "0" * 64}, "not the file that the recipe expects"),
        ("url,label\n\x81,y\n", {}, "cannot be read as a table"),
        ("url,label\nhttps://a.org/1.jpg,y\n", {"mirror": {"https:": "ftp:"}}, "http://host/path"),
    ],
)
def test_a_table_that_cannot_work_is_reported_before_anything_is_asked(
    tmp_path: Path, content: str, settings: dict[str, Any], said: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode("latin-1"))
    source = TableSource.model_validate({"kind": "table", "path": path, **settings})
    with pytest.raises(UserError, match=said):
        acquire([source], FetchSettings(contact="me"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_tables_are_refused(tmp_path: Path) -> None:
    for name, content, said in (
        ("absent.csv", None, "does not exist"),
        ("t.ods", b"x", r"not a table of a known format; save it as \.xlsx"),
        ("t.xlsx", b"x", "is not an .xlsx"),
        ("old.xlsx", b"\xd0\xcf\x11\xe0", "with a password or in the old format"),
        ("t.hdf5", b"x", "cannot be read as a table|the extra `?data`?"),
        ("t.parquet", b"PAR1", "cannot be read as a table"),
        ("t.jsonl", b"[1]\n", "line 1 .* is not a JSON object"),
        ("u.jsonl", b"{\n", "cannot be read as a table"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match=said):
            begin(TableSource(kind="table", path=path))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("6", 6),
        ("iv", 4),
        (" VI ", 6),
        ("-1", None),
        ("0", None),
        ("", None),
        ("3.5", None),
    ],
)
def test_skin_types(text: str, number: int | None) -> None:
    assert skin_type(text) == number


def test_cells_become_text() -> None:
    assert [cell(value) for value in (None, float("nan"), 3.0, 3.5, 7, " a ")] == [
        "", "", "3", "3.5", "7", "a",
    ]  # fmt: skip
