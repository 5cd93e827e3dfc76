"""The first 200 rows of Fitzpatrick17k, images from a mirror on loopback.

The mirror paints its images, and the table gets their MD5s, 20 of them wrong on purpose.
"""

import csv
import hashlib
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from local_site import Answer, LocalSite
from paint_images import encode, paint

from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import build
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.ledger import LedgerRow, read_ledger
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.recipe import BuildSettings, load_build_settings
from skindx.data.sources.url_table import TableSource

pytestmark = pytest.mark.real

RECIPE = Path(__file__).parents[2] / "data" / "fitzpatrick17k.yaml"
HOSTS = {
    "https://www.dermaamin.com/": "/dermaamin/",
    "http://atlasdermatologico.com.br/": "/atlas/",
}

ACQUIRE = """
import sys
from pathlib import Path
from skindx.data.build.acquire import acquire
from skindx.data.recipe import BuildSettings
settings = BuildSettings.load(Path(sys.argv[1]))
acquire(settings.sources, settings.fetch, Path(sys.argv[2]))
"""


@dataclass
class Killed:
    """A crawl that was killed twice and went on, and what the mirror saw."""

    settings: BuildSettings
    dataset: Path
    rows: list[LedgerRow]
    lines: list[dict[str, str]]
    paths: list[str]
    asked: list[str]
    kept: list[tuple[set[str], int]]
    """What the ledger held at each kill, and how many requests there had been."""


def mirror_path(url: str) -> str:
    (host,) = [host for host in HOSTS if url.startswith(host)]
    return HOSTS[host] + url.removeprefix(host)


def prepare(real: Path, folder: Path, site: LocalSite) -> list[dict[str, str]]:
    """Write the table's first 200 rows with the painted images' checksums; serve the images."""
    with (real / "tables/fitzpatrick17k.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))[:200]
    with_url = [line for line in lines if line["url"]]
    for number, line in enumerate(with_url):
        data = encode(paint(number), quality=85)
        site.pages[mirror_path(line["url"])] = Answer(data, after_s=0.02)
        wrong = b"!" if number % 25 == 3 else b""  # 8 of 199
        line["md5hash"] = hashlib.md5(data + wrong, usedforsecurity=False).hexdigest()
    (folder / "tables").mkdir()
    with (folder / "tables/fitzpatrick17k.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return lines


@pytest.fixture(scope="module")
def killed(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("fitzpatrick17k")
    dataset = folder / "out"
    with LocalSite() as site, pytest.MonkeyPatch.context() as patch:
        lines = prepare(real, folder, site)
        patch.setenv("SKINDX_REAL", str(folder))
        patch.setenv("SKINDX_CONTACT", "me@example.org")
        settings = load_build_settings(RECIPE, ["taxonomy=null", "workers=1"])
        (source,) = settings.sources
        assert isinstance(source, TableSource)
        mirror = {host: site.origin + path for host, path in HOSTS.items()}
        fetch = FetchSettings(
            origins={site.origin: OriginPolicy(concurrency=8, delay_s=0)},
            allow_private=(site.netloc,),
        )
        source = source.model_copy(update={"mirror": mirror})
        settings = settings.model_copy(update={"sources": (source,), "fetch": fetch})
        settings.save(folder / "recipe.yaml")
        kept = []
        for more in (40, 60):
            parent = subprocess.Popen(
                [sys.executable, "-c", ACQUIRE, str(folder / "recipe.yaml"), str(dataset)]
            )
            before = len(read_ledger(dataset))
            while len(read_ledger(dataset)) < before + more:
                assert parent.poll() is None
                time.sleep(0.02)
            parent.kill()
            parent.wait()
            kept.append(({row.url for row in read_ledger(dataset)}, len(site.asked)))
        rows = acquire(settings.sources, settings.fetch, dataset)
        asked = list(site.asked)
        site.asked.clear()
        assert acquire(settings.sources, settings.fetch, dataset) == rows
        assert site.asked == []
        return Killed(settings, dataset, rows, lines, list(site.pages), asked, kept)


def test_191_are_stored_8_are_other_bytes_and_1_has_no_url(killed: Killed) -> None:
    assert Counter(row.status for row in killed.rows) == {
        "stored": 191,
        "md5-mismatch": 8,
        "no-url": 1,
    }
    without = [line["md5hash"] for line in killed.lines if not line["url"]]
    named = [row.url for row in killed.rows if row.status == "no-url"]
    assert sorted(named) == sorted(f"fitzpatrick17k.csv#{key}" for key in without)
    # The bytes that are not what the table means are nowhere on the disk.
    assert len(list((killed.dataset / "store").rglob("*.jpg"))) == 191


def test_rows_keep_the_table_s_urls_labels_and_skin_types(killed: Killed) -> None:
    reported = {row.url: (row.label, row.skin_type, row.licence) for row in killed.rows}
    for line in killed.lines:
        if line["url"]:
            scale = int(line["fitzpatrick_scale"])
            expected = (line["label"], scale if scale > 0 else None, "")
            assert reported[line["url"]] == expected


def test_killed_twice_nothing_is_fetched_twice_or_lost(killed: Killed) -> None:
    images = [path for path in killed.asked if path != "/robots.txt"]
    assert set(images) == set(killed.paths)
    first, second = killed.kept
    assert len(first[0]) >= 40
    assert first[0] < second[0]
    for known, asked in killed.kept:
        done = {mirror_path(url) for url in known if url.startswith("http")}
        assert done.isdisjoint(killed.asked[asked:])
    lines = Counter(row.url for row in killed.rows)
    assert set(lines.values()) == {1}


@pytest.mark.parametrize("copies", ["off", pytest.param("group", marks=pytest.mark.long)])
def test_a_whole_dataset_comes_of_it(killed: Killed, copies: str) -> None:
    """Without the search for copies, most of its time, in the suite; with it in the long run."""
    dedup = killed.settings.dedup.model_copy(update={"copies": copies})
    summary = build(killed.settings.model_copy(update={"dedup": dedup}), killed.dataset)
    records, issues = read_manifest(killed.dataset), read_issues(killed.dataset)
    assert summary.found == 200 == len(records) + len(issues)
    reasons = Counter(issue.reason for issue in issues)
    assert (reasons["md5-mismatch"], reasons["no-url"]) == (8, 1)
    # All images differ: only classes of fewer than three images go.
    assert set(reasons) == {"md5-mismatch", "no-url", "class-too-small"}
    assert {record.licence for record in records} == {""}
    assert any(record.skin_type == 6 for record in records)
    assert not any(record.source_url.startswith("http://127") for record in records)
