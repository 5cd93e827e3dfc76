"""A value of this machine goes only to hosts that its user named for it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from local_site import Answer, LocalSite

from skindx.core.errors import UserError
from skindx.core.secret_hosts import ALLOWED, host_of
from skindx.core.settings_base import Settings
from skindx.data.build.acquire import acquire
from skindx.data.crawl.fetch_settings import scrapy_settings
from skindx.data.recipe import BuildSettings
from skindx.training.config.run import TrainSettings

API = "https://api.example:8443/images/"
ISIC = {"kind": "isic", "searches": {"Nevus": "all"}}
ATLAS = {"kind": "atlas", "start": "https://a.example/"}
PACS = {"kind": "dicom", "label": "ImageComments"}
MEMBER = {"name": "m", "model": "test_resnet"}


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SECRET": "swordfish", "SITE": "https://a.example", "SKINDX_CONTACT": "me@a.example",
        "DATA": "/srv/data",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(ALLOWED, raising=False)


def recipe(*sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "r", "sources": list(sources), **more}


SENT: dict[str, tuple[dict[str, Any], str]] = {
    "path of a URL": (recipe(ISIC | {"api": f"{API}${{SECRET}}/"}), "SECRET@api.example:8443"),
    "host of a URL": (recipe(ATLAS | {"start": "https://${SECRET}.evil.example/"}),
                      "SECRET@swordfish.evil.example"),
    "query of a URL": (recipe(ATLAS | {"start": "https://a.example/?k=${SECRET}"}),
                       "SECRET@a.example"),
    "after a variable that names a host": (recipe(ATLAS | {"start": "${SITE}/${SECRET}"}),
                                           "SECRET@a.example"),
    "glued to a variable": (recipe(ATLAS | {"start": "${SITE}.evil.example/"}),
                            "SITE@a.example.evil.example"),
    "a search": (recipe(ISIC | {"api": API, "searches": {"N": ["all", "${SECRET}"]}}),
                 "SECRET@api.example:8443"),
    "a search of the default server": (recipe({"kind": "openverse",
                                               "searches": {"N": "${SECRET}"}}),
                                       "SECRET@api.openverse.org"),
    "a mirror": (recipe({"kind": "table", "path": "t.csv",
                         "mirror": {"https://x.example/": "https://m.example/${SECRET}/"}}),
                 "SECRET@m.example"),
    "the hub": (recipe({"kind": "huggingface", "repo": "a/${SECRET}"}), "SECRET@huggingface.co"),
    "a query of DICOM": (recipe(PACS | {"server": {"url": "https://p.example/d",
                                                   "query": {"PatientID": "${SECRET}"}}}),
                         "SECRET@p.example"),
    "a user of DICOM": (recipe(PACS | {"server": {"url": "https://p.example/d",
                                                  "user": "${SECRET}", "secret": "env:X"}}),
                        "SECRET@p.example"),
    "the contact": (recipe(ATLAS, fetch={"contact": "${SECRET}"}), "SECRET@*"),
}  # fmt: skip


@pytest.mark.parametrize("case", SENT)
def test_a_recipe_names_no_host_for_a_secret(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, line = SENT[case]
    with pytest.raises(UserError, match="if you trust this server") as refused:
        BuildSettings.parse(raw, "theirs.yaml")
    assert f"export {ALLOWED}='{line}'" in str(refused.value)
    monkeypatch.setenv(ALLOWED, f"OTHER@{line.split('@')[1]}, {line.split('@')[0]}@evil.example")
    with pytest.raises(UserError, match=rf"evil\.example,{line.replace('*', '.')}'"):
        BuildSettings.parse(raw)
    monkeypatch.setenv(ALLOWED, line)
    assert BuildSettings.parse(raw)


def test_what_is_sent_nowhere_or_names_its_host_needs_no_word(tmp_path: Path) -> None:
    settings = BuildSettings.parse(
        recipe(
            {"kind": "table", "path": "${DATA}/t.csv"},
            ATLAS | {"start": "${SITE}/skin"},
            {"kind": "folder", "path": "${DATA}", "licence": "${SECRET}"},
            PACS | {"path": "${DATA}/x", "server": None},
            fetch={"contact": "${SKINDX_CONTACT}"},
            blocklist="${DATA}/list",
        )
    )
    assert settings.sources[1].start == "https://a.example/skin"
    settings.save(tmp_path / "recipe.yaml")
    again = BuildSettings.saved(tmp_path / "recipe.yaml")
    assert again.model_dump() == settings.model_dump()


def test_a_secret_of_a_url_is_not_written_into_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, "SECRET@api.example:8443")
    settings = BuildSettings.parse(recipe(ISIC | {"api": f"{API}${{SECRET}}/"}))
    settings.model_copy(update={"seed": 3}).save(tmp_path / "recipe.yaml")
    text = (tmp_path / "recipe.yaml").read_text()
    assert "swordfish" not in text
    assert f"{API}${{SECRET}}/" in text
    monkeypatch.delenv("SECRET")
    assert BuildSettings.saved(tmp_path / "recipe.yaml").seed == 3


def test_a_tracker_gets_no_variable_that_was_not_named_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mlflow = {"kind": "mlflow", "uri": "https://t.example/"}
    online = {"kind": "wandb", "mode": "online"}
    for changes, line in (
        ({"monitors": [mlflow | {"uri": "https://t.example/${SECRET}"}]}, "SECRET@t.example"),
        ({"monitors": [mlflow | {"experiment": "${SECRET}"}]}, "SECRET@t.example"),
        ({"monitors": [mlflow], "name": "${SECRET}"}, "SECRET@t.example"),
        ({"monitors": [online | {"project": "${SECRET}"}]}, "SECRET@api.wandb.ai"),
        ({"engine": {"leases": "postgresql://u@db.example/${SECRET}"}}, "SECRET@db.example"),
        ({"members": [MEMBER | {"model": "hf-hub:a/${SECRET}"}]}, "SECRET@huggingface.co"),
    ):  # fmt: skip
        raw = {"members": [MEMBER], **changes}
        with pytest.raises(UserError, match=f"='{line}'"):
            TrainSettings.parse(raw)
        with monkeypatch.context() as patch:
            patch.setenv(ALLOWED, line)
            assert TrainSettings.parse(raw)
    here = {"monitors": ["tensorboard", "wandb", {"kind": "mlflow", "uri": "sqlite:///${DATA}/m"}]}
    assert TrainSettings.parse({"members": [MEMBER], "name": "${SECRET}", **here})
    theirs = {"monitors": [{"kind": "mlflow", "uri": "${SITE}"}]}
    assert TrainSettings.parse({"members": [MEMBER], **theirs})


def test_the_settings_of_every_kind_check_their_urls() -> None:
    class Any_(Settings):
        text: str

    with pytest.raises(UserError, match=r"settings would send .* SECRET to x\.example"):
        Any_.parse({"text": "ftp://user@X.example/${SECRET}"})
    assert Any_.parse({"text": "a text with https://x.example and ${SECRET}"})
    assert Any_.parse({"text": "https://x/${SECRET}"}, expand=False)
    assert [host_of(url) for url in ("sqlite:///a", "a:b", "http://[::1", "//x/")] == [
        "", "", "?", "",
    ]  # fmt: skip


def test_no_page_s_address_is_told_to_another_host(tmp_path: Path) -> None:
    """An API's address may hold its key: a picture elsewhere hears of no path and no query."""
    assert scrapy_settings(BuildSettings.parse(recipe(ATLAS)).fetch)["REFERRER_POLICY"] == (
        "strict-origin"
    )
    with LocalSite() as pictures, LocalSite() as api:
        found = {"isic_id": "ISIC_1", "files": {"full": {"url": f"{pictures.origin}/1.jpg"}}}
        answer = json.dumps({"results": [found], "next": None}).encode()
        api.default = Answer(answer, headers={"Content-Type": "application/json"})
        private = [api.netloc, pictures.netloc]
        raw = recipe(ISIC | {"api": f"{api.origin}/swordfish/"}, fetch={"allow_private": private})
        settings = BuildSettings.parse(raw)
        acquire(settings.sources, settings.fetch, tmp_path / "out")
        assert pictures.asked
        assert "swordfish" not in json.dumps([dict(one) for one in pictures.headers])


def test_yaml_of_an_older_recipe_stops_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(yaml.safe_dump(recipe(ISIC | {"api": f"{API}${{SECRET}}/"})))
    with pytest.raises(
        UserError,
        match=r".* would send the value of the environment variable SECRET to api\.example:8443",
    ):
        BuildSettings.load(file)
