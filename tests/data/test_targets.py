from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import count_by_source
from skindx.data.build.build_run import check_targets
from skindx.data.copies.deduplicate import LabelledImage
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Record
from skindx.data.screening.screen import Screened
from skindx.data.summary import print_counts
from skindx.taxonomy import load_taxonomy


def image(label: str, source: str, sha: str) -> LabelledImage:
    row = LedgerRow(f"{source}/{sha}", label, "stored", sha256=sha, source=source)
    return LabelledImage(row, label, Screened(None, "", 8, 8, np.zeros((1, 8), np.uint64)))


def record(label: str, source: str, sha: str) -> Record:
    return Record("p", sha, "0", 8, 8, label, sha, "train", source=source)


IMAGES = [
    [image("acne", "atlas", "a"), image("acne", "folder", "a")],
    [image("acne", "folder", "b")],
    [image("wart", "folder", "c")],
]
KEPT = [record("acne", "atlas", "a"), record("wart", "folder", "c")]


def test_each_source_is_reported_what_it_gave_and_what_stayed() -> None:
    acne, wart, tinea = count_by_source(
        ["acne", "wart", "tinea"], IMAGES, KEPT, {"acne": 4, "tinea": 2}
    )
    assert acne.found == {"atlas": 1, "folder": 2}
    assert acne.kept == {"atlas": 1}
    assert (acne.target, acne.all_kept, acne.missing) == (4, 1, 3)
    assert (wart.target, wart.all_kept, wart.missing) == (None, 1, 0)
    assert (tinea.found, tinea.kept, tinea.missing) == ({}, {}, 2)


def test_the_table_shows_how_much_of_each_target_is_reached() -> None:
    counts = count_by_source(["acne", "wart"], IMAGES, KEPT, {"acne": 4})
    text = StringIO()
    print_counts(counts, Console(file=text, width=100))
    rows = {
        line.split()[1]: line.split("│") for line in text.getvalue().splitlines() if "│" in line
    }
    assert [cell.strip() for cell in rows["acne"]][1:-1] == ["acne", "4", "1", "25%", "1", "0"]
    assert [cell.strip() for cell in rows["wart"]][1:-1] == ["wart", "–", "1", "–", "0", "1"]
    assert [cell.strip() for cell in rows["all"]][1:-1] == ["all", "4", "2", "50%", "1", "1"]


def test_a_target_of_no_class_is_reported() -> None:
    skin10 = load_taxonomy("skin10")
    check_targets(dict.fromkeys(skin10.keys, 1), skin10)
    with pytest.raises(UserError, match=r"'acne vulgaris', .*'Acne_Vulgaris'"):
        check_targets({"acne vulgaris": 5}, skin10)
    with pytest.raises(UserError, match=r"'Rosazea', .*skin10 \(nearest: Rosacea"):
        check_targets({"Rosazea": 5}, skin10)


def test_sources_whose_names_begin_alike_can_be_reported_apart() -> None:
    names = [f"https://a-long-name-of-a-site.example/atlas/of/skin/{part}" for part in "abcd"]
    images = [[image("acne", name, name[-1])] for name in names]
    text = StringIO()
    print_counts(count_by_source(["acne"], images, [], {}), Console(file=text, width=80))
    for number, name in enumerate(names, 1):
        assert f"source {number}: {name}" in text.getvalue()
