"""One command puts what the real APIs say in the place of the documentation's answers."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from api_site import ANSWERS, CONTACT, KINDS, recorded, serve, source_of
from local_site import LocalSite

from skindx.data.crawl.fetch_settings import FetchSettings


@pytest.mark.parametrize("kind", KINDS)
def test_the_answers_say_where_they_come_from(kind: str) -> None:
    assert re.match(r"unverified live: |recorded live on 20", recorded(kind)["note"])
    for answer in recorded(kind)["answers"]:
        api = KINDS[kind].model_fields["api"].default
        assert answer["url"].startswith(api)
        assert urlsplit(answer["url"]).scheme == "https"


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return record.py as a module that writes into a folder of its own, and never sleeps."""
    spec = spec_from_file_location("record_answers", ANSWERS / "record.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sys, "argv", ["record.py", "--contact", CONTACT])
    return module


def test_one_command_records_all_answers_anew(record: Any, tmp_path: Path) -> None:
    with LocalSite() as site:
        bodies = {kind: serve(kind, site) for kind in KINDS}
        for kind in KINDS:
            settings = source_of(kind, site).model_dump(mode="json", exclude={"kind"})
            (tmp_path / f"{kind}.json").write_text(json.dumps({"settings": settings}))
        record.main()
        agents = {headers["user-agent"] for headers in site.headers}
    assert agents == {FetchSettings(contact=CONTACT).user_agent}
    for kind, served in bodies.items():
        written = json.loads((tmp_path / f"{kind}.json").read_text())
        assert written["note"].startswith("recorded live on 20")
        assert len(written["answers"]) == len(served) == len(recorded(kind)["answers"])
        named = [set(re.findall(r'"url": "([^"]+)"', json.dumps(body))) for body in served]
        kept = [json.dumps(answer["body"]) for answer in written["answers"]]
        assert all(url in text for urls, text in zip(named, kept, strict=True) for url in urls)


def test_an_api_that_does_not_answer_leaves_its_file(record: Any, tmp_path: Path) -> None:
    with LocalSite() as site:
        settings = source_of("isic", site).model_dump(mode="json", exclude={"kind"})
        for kind in KINDS:
            (tmp_path / f"{kind}.json").write_text(json.dumps({"settings": settings}))
        before = (tmp_path / "isic.json").read_bytes()
        with pytest.raises(SystemExit, match=r"gave no answer \(HTTP Error 404.*is unchanged"):
            record.record("isic", "me")
    assert (tmp_path / "isic.json").read_bytes() == before
