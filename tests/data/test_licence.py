import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.origin import RESERVED, UNKNOWN, Licence, parse_licence

CC = "https://creativecommons.org"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("CC BY 4.0", "CC-BY-4.0"),
        ("cc-by-nc-sa-3.0", "CC-BY-NC-SA-3.0"),
        ("CC‑BY‑4.0", "CC-BY-4.0"),  # non-breaking hyphens
        ("https://creativecommons.org/licenses/by/2.0/", "CC-BY-2.0"),
        ("http://www.creativecommons.org/licenses/by-nc-nd/3.0/nz/deed.en", "CC-BY-NC-ND-3.0-NZ"),
        ("https://creativecommons.org/licenses/by-sa/4.0/legalcode", "CC-BY-SA-4.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("https://creativecommons.org/publicdomain/mark/1.0/deed.de", "PDM-1.0"),
        ("Creative Commons Attribution-NonCommercial 4.0 International", "CC-BY-NC-4.0"),
        ("Creative Commons Attribution 4.0 International (CC BY 4.0)", "CC-BY-4.0"),
        ("CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/)", "CC-BY-4.0"),
        ("Licensed under a Creative Commons Attribution-ShareAlike 3.0 License", "CC-BY-SA-3.0"),
        ("Licence: CC BY-NC 2.5", "CC-BY-NC-2.5"),
        ("CC BY-SA 3.0 de", "CC-BY-SA-3.0-DE"),
        ("CC-BY-NC-SA-3.0-IGO", "CC-BY-NC-SA-3.0-IGO"),
        ("by-nc", "CC-BY-NC"),
        ("by 2.0", "CC-BY-2.0"),
        ("CC0", "CC0-1.0"),
        ("CC-0", "CC0-1.0"),
        ("cc0-1.0", "CC0-1.0"),
        ("CC-BY", "CC-BY"),
        ("CC-BY-NC", "CC-BY-NC"),
        ("pdm", "PDM-1.0"),
        ("Public domain", "PDM-1.0"),
        ("MIT License", "MIT"),
        ("apache-2.0", "Apache-2.0"),
        ("All rights reserved", "all-rights-reserved"),
        ("All rights reserved.", "all-rights-reserved"),
    ],
)
def test_what_sources_say(said: str, name: str) -> None:
    assert parse_licence(said).id == name


@pytest.mark.parametrize(
    "said",
    [
        "",
        "   ",
        "free",
        "by",
        "Attribution",
        "CC",
        "CC BY 9.0",
        "CC BY-SA-ND 4.0",
        "CC NC 4.0",
        "CC BY 4.0 is not what this is",
        "not CC BY 4.0",
        "CC BY 4.0 or later",
        "CC BY 4.0 (CC BY-NC 4.0)",
        "unverified: CC BY-NC 4.0 where from HAM10000, otherwise per-image ISIC archive terms",
        "https://creativecommons.org.example.com/licenses/by/4.0/",
        "https://example.com/?creativecommons.org/licenses/by/4.0/",
        "https://creativecommons.org/licenses/by/4.0/../../by-nc/4.0/",
        "https://creativecommons.org/licenses/by-nc/5.0/",
        "CC BY 4.0 de",
    ],
)
def test_what_is_not_surely_known_gives_no_permission(said: str) -> None:
    assert parse_licence(said) == UNKNOWN
    assert (UNKNOWN.may_redistribute, UNKNOWN.may_adapt) == (False, False)


def test_permissions_by_hand() -> None:
    assert parse_licence("CC BY-NC-SA 3.0 de") == Licence(
        "CC-BY-NC-SA-3.0-DE",
        may_redistribute=True,
        may_adapt=True,
        non_commercial=True,
        share_alike=True,
        needs_attribution=True,
        url=f"{CC}/licenses/by-nc-sa/3.0/de/",
    )
    no_changes = parse_licence("CC BY-NC-ND 4.0")
    assert (no_changes.may_redistribute, no_changes.may_adapt) == (True, False)
    assert (RESERVED.may_redistribute, RESERVED.may_adapt) == (False, False)
    assert parse_licence("CC0") == Licence(
        "CC0-1.0", may_redistribute=True, may_adapt=True, url=f"{CC}/publicdomain/zero/1.0/"
    )
    assert parse_licence("CC-BY-NC").url == ""


PARTS = st.sampled_from(["by", "by-nc", "by-sa", "by-nd", "by-nc-sa", "by-nc-nd"])
VERSIONS = st.sampled_from(["1.0", "2.0", "2.5", "3.0", "4.0"])


@given(PARTS, VERSIONS, st.sampled_from(" -_"), st.booleans())
def test_every_spelling_of_a_licence_is_the_same(
    parts: str, version: str, gap: str, shout: bool
) -> None:
    expected = parse_licence(f"{CC}/licenses/{parts}/{version}/")
    assert expected.id == f"CC-{parts}-{version}".upper()
    said = gap.join(["cc", parts.replace("-", gap), version])
    assert parse_licence(said.upper() if shout else said) == expected
    assert parse_licence(f"  {said} ") == expected
    assert parse_licence(expected.id) == expected
    assert expected.may_adapt is ("nd" not in parts)
    assert expected.non_commercial is ("nc" in parts)


@given(st.text(max_size=30), PARTS, VERSIONS, st.text(min_size=1, max_size=30))
def test_other_words_around_a_licence_never_permit_more(
    before: str, parts: str, version: str, after: str
) -> None:
    """Words beside a licence make it unknown, unless they are spelling or one more condition."""
    plain = parse_licence(f"CC {parts} {version}")
    said = parse_licence(f"{before} CC {parts} {version} {after}")
    assert said == UNKNOWN or said.id.startswith(plain.id)


@given(st.text(max_size=60))
def test_any_text_has_an_answer(said: str) -> None:
    licence = parse_licence(said)
    assert licence.may_redistribute or licence in (UNKNOWN, RESERVED)
