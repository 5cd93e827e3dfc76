"""What a bundle may be used for: checked where it is written, kept by whatever changes a bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from forged_bundle import WHOLE, change_index, copy_bundle
from tiny_bundle import SAYS, USE, measured, pack_tiny

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import add_metrics, add_provenance, put_folder
from skindx.models.bundle.use_limits import MOST_WORDS, UseLimits
from skindx.training.config.run import TrainSettings

PLAIN: dict[str, Any] = USE.model_dump(mode="json")


def test_the_sentence_is_made_of_its_fields() -> None:
    assert USE.sentence == SAYS
    assert USE.licence_text == "CC-BY-NC-4.0 (https://creativecommons.org/licenses/by-nc/4.0/)"
    assert USE.text.startswith(f"{SAYS} The licence of the weights is CC-BY-NC-4.0 (https://")
    free = UseLimits(licence="Our own", commercial=True, learned_from="photos.", not_for=("dogs",))
    assert (
        free.sentence == "It is for research. It learned from photos and knows nothing about dogs."
    )
    assert (free.licence_text, free.licence_url) == ("Our own", "")
    assert USE.model_copy(update={"not_for": ()}).sentence.endswith("images of moles.")


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ((None, None, None), ()),
        ((18, "back", 4), ()),
        ((17, None, None), ("children",)),
        ((5, "nail", None), ("children", "nails")),
        ((40, "lip", None), ("mucosa",)),
        ((40, "genitals", 6), ("mucosa",)),
    ],
)
def test_the_facts_about_a_person_may_lie_beyond_its_limits(
    facts: tuple[int | None, str | None, int | None], found: tuple[str, ...]
) -> None:
    assert USE.beyond(*facts) == found


def test_skin_types_count_where_the_bundle_speaks_of_skin() -> None:
    light = USE.model_copy(update={"learned_from": "dermoscopic images of light skin"})
    assert light.beyond(40, "back", 5) == ("skin types V and VI",)
    assert light.beyond(40, "back", 4) == ()
    assert light.beyond(5, "back", 6) == ("children", "skin types V and VI")
    named = USE.model_copy(update={"not_for": ("brown and black skin", "palms")})
    assert named.beyond(None, "palm", 6) == ("brown and black skin", "palms")
    assert USE.beyond(None, None, 6) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"commercial": True}, "forbids commercial use; set use.commercial=false"),
        ({"learned_from": " ".join(["skin"] * 25)}, f"the limit is {MOST_WORDS}"),
        ({"learned_from": "two\nlines"}, "must have no line breaks"),
        ({"not_for": ["\x1b[31mred"]}, "must have no line breaks"),
        ({"licence": ""}, "licence"),
        ({"licence_url": "javascript:alert(1)"}, "licence_url"),
        ({"not-for": ["dogs"]}, "not_for"),
    ],
)
def test_what_cannot_be_said_is_refused_in_the_settings_and_in_a_bundle(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    use = {key: value for key, value in PLAIN.items() if key != "licence_url"} | change
    with pytest.raises(UserError, match=said):
        TrainSettings.parse({"use": use})
    change_index(bundle := copy_bundle(tmp_path), ("use",), use)
    with pytest.raises(UserError, match=said):
        open_bundle(bundle)


def test_a_bundle_keeps_it_under_its_digest_and_an_older_one_has_none(tmp_path: Path) -> None:
    path, plain = pack_tiny(tmp_path / "bundle", use=USE).path, open_bundle(WHOLE)
    assert plain.spec.use is None
    assert b'"use"' not in plain.spec.model_dump_json().encode()
    assert "use" not in json.loads((pack_tiny(tmp_path / "bare").path / "bundle.json").read_text())
    first = open_bundle(path)
    assert first.spec.use == USE
    add_provenance(path, {"more": 1})
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports" / "x.txt").write_text("x")
    put_folder(path, "exports", tmp_path / "exports")
    add_metrics(path, measured(0.5))
    changed = open_bundle(path)
    assert changed.spec.use == USE
    assert changed.digest != first.digest
    card = (path / "MODEL_CARD.md").read_text()
    assert f"- **{SAYS}**\n" in card
    assert "- licence: CC-BY-NC-4.0 (https://" in card
    assert "- citation: Painter A. Moles. 2018\n" in card
    change_index(path, ("use", "commercial"), False)
    change_index(path, ("use", "licence"), "CC-BY-4.0")
    with pytest.raises(UserError, match=r"belongs to bundle|the digest"):
        open_bundle(path, changed.digest)


def test_a_run_without_it_is_packed_from_what_it_was_packed_from_before() -> None:
    """A key without a value would change the fingerprint of every finished run."""
    assert "use" not in TrainSettings().model_dump(mode="json")
    given = TrainSettings.parse({"use": PLAIN})
    assert TrainSettings.parse(given.model_dump(mode="json")).use == USE
