"""Places on the body: one list for sources, forms, files and answers."""

import pytest

from skindx.data.sources.columns import Columns
from skindx.taxonomy.lexicon import SITES, site_of, site_table, snomed_sites, wider_site


def test_every_name_and_code_means_one_place() -> None:
    table = site_table()
    assert tuple(table) == SITES
    names = [name for row in table.values() for name in row.also] + list(SITES)
    codes = [code for row in table.values() for code in row.codes.split()]
    assert len(set(names)) == len(names)
    assert len(set(codes)) == len(codes)


def test_what_is_exported_is_read_back_as_the_place_or_a_wider_one() -> None:
    back = {
        site: snomed_sites()[row.concept.split()[0]]
        for site, row in site_table().items()
        if row.concept
    }
    assert {site: place for site, place in back.items() if place != site} == {"sole": "foot"}
    assert set(SITES) - set(back) == {"palm or sole"}


@pytest.mark.parametrize(
    ("name", "site", "wider"),
    [
        ("Lower  Lip", "lip", "face"),
        ("fingernail", "nail", "nail"),
        ("sole of foot", "sole", "palm or sole"),
        ("Palm of hand", "palm", "palm or sole"),
        ("acral", "palm or sole", "palm or sole"),
        ("genital", "genitals", "genitals"),
        ("elbow", "elbow", "elbow"),
    ],
)
def test_a_table_s_column_uses_the_same_list(name: str, site: str, wider: str) -> None:
    assert site_of(name) == site
    assert wider_site(site) == wider
    assert Columns(site="where").known({"where": f" {name} "})["site"] == site
    assert Columns(site="where").known({"where": "NA"})["site"] == ""
