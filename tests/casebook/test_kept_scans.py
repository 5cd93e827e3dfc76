"""Scans in the case book: by consent, sealed, compared, gone when they are deleted."""

import shutil
from pathlib import Path

import pytest
from command_line import Skindx
from kept_cases import answer
from painted_bodies import WHEN
from scan_folders import visits_of

from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import LIST
from skindx.casebook.scan_book import compared
from skindx.core.errors import UserError

PATIENT, VIEW = "patient-0017", "upper back, standing"
SECRETS = (PATIENT.encode(), VIEW.encode(), b"photo_number", b"overviews/01", b"lesions.parquet")
OLD = Path(__file__).parents[1] / "fixtures/v0_1/cases.db"


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return visits_of(tmp_path_factory.mktemp("visits"))


@pytest.fixture
def book(tmp_path: Path) -> Casebook:
    return Casebook.open(tmp_path / "cases.db")


def keep(book: Casebook, scan: Path, owner: str = "ann", view: str = "back") -> str:
    return book.scans.keep(
        owner, scan, patient="P-1", view=view, consent=True, compare=True, listing="<p>12</p>"
    )


def test_a_kept_scan_comes_back_as_it_was(book: Casebook, visits: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="without consent"):
        book.scans.keep("ann", visits[0], patient="P-1", view="back", consent=False)
    with pytest.raises(UserError, match="The view has no name"):
        book.scans.keep("ann", visits[0], patient="P-1", view=" ", consent=True)
    with pytest.raises(UserError, match="is not the folder of a scan"):
        book.scans.keep("ann", visits[0].parent, patient="P-1", view="back", consent=True)
    assert book.scans.scans(None) == []
    scan = keep(book, visits[0])
    (kept,) = book.scans.scans("ann")
    assert (kept.id, kept.patient, kept.view, kept.taken) == (scan, "P-1", "back", WHEN)
    assert (kept.photos, kept.lesions > 5) == (1, True)
    files = book.scans.files("ann", scan)
    assert {LIST, "scan.json", "lesions.parquet", "scan.html"} < files.keys()
    for name in ("lesions.parquet", "overviews/01.jpg", "crops/0001.jpg"):
        assert files[name] == (visits[0] / name).read_bytes()
    assert book.scans.files("ann", scan, LIST) == {LIST: b"<p>12</p>"}
    # Nobody else reaches it.
    assert book.scans.scans("bob") == []
    for refused in (book.scans.files, book.scans.delete):
        with pytest.raises(UserError, match="not in the case book"):
            refused("bob", scan)


def test_the_database_shows_nothing_and_a_deletion_leaves_nothing(
    book: Casebook, visits: tuple[Path, Path], tmp_path: Path
) -> None:
    scan = book.scans.keep("ann", visits[0], patient=PATIENT, view=VIEW, consent=True)
    case = book.keep("ann", answer(1), patient=PATIENT, lesion="arm", consent=True)
    raw = (tmp_path / "cases.db").read_bytes()
    photo = (visits[0] / "overviews/01.jpg").read_bytes()
    for secret in (*SECRETS, photo[700:800]):
        assert secret not in raw
    key = book.keys.read().cases[scan]
    book.scans.delete("ann", scan)
    assert book.scans.scans("ann") == []
    keys = book.keys.read()
    assert (scan in keys.cases, key in keys.cases.values(), scan in keys.deleted) == (
        False,
        False,
        True,
    )
    # A backup of the database brings back nothing, and its rows go; cases stay.
    book.engine.dispose()
    (tmp_path / "cases.db").write_bytes(raw)
    again = Casebook.open(tmp_path / "cases.db")
    assert again.scans.scans(None) == []
    assert again.unreadable() == []
    assert [kept.id for kept in again.all_cases("ann")] == [case]


def test_two_scans_of_a_view_are_compared(
    book: Casebook, visits: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("skindx.casebook.scan_book.memory_folder", lambda _: tmp_path)
    second, first = keep(book, visits[1]), keep(book, visits[0])
    with compared(book.scans, "ann", second, first) as comparison:
        (plain,) = tmp_path.glob("skindx-compare-*")
        assert plain.stat().st_mode & 0o077 == 0
        assert comparison.before.summary.made_at == WHEN  # the older one, however they are named
        assert comparison.count("grown") >= 1
        assert comparison.count("new") == 0
    assert list(tmp_path.glob("skindx-compare-*")) == []
    other = keep(book, visits[1], view="chest")
    for pair, said in (
        ((first, first), "twice, so choose two different scans"),
        ((first, other), "different patients or views"),
        ((first, "0" * 32), "not in the case book"),
    ):
        with pytest.raises(UserError, match=said), compared(book.scans, "ann", *pair):
            pass


def test_a_book_of_an_older_version_takes_scans(tmp_path: Path, visits: tuple[Path, Path]) -> None:
    shutil.copy(OLD, tmp_path / "cases.db")
    book = Casebook.open(tmp_path / "cases.db")
    cases = len(book.all_cases())
    assert cases > 0
    keep(book, visits[0])
    assert len(Casebook.open(tmp_path / "cases.db").scans.scans("ann")) == 1
    assert len(book.all_cases()) == cases


def test_the_command_line_keeps_lists_compares_and_deletes(
    skindx: Skindx, visits: tuple[Path, Path], tmp_path: Path
) -> None:
    book = str(tmp_path / "cases.db")
    words = ("--patient", "P-1", "--view", "back")
    code, _, errors = skindx("casebook", "keep-scan", book, str(visits[0]), *words)
    assert (code, "without consent" in errors) == (2, True)
    agreed = ("--consent", "--consent-compare")
    for visit in visits:
        code, said, _ = skindx("casebook", "keep-scan", book, str(visit), *words, *agreed)
        assert (code, said.startswith("kept as")) == (0, True)
    first, second = (scan.id for scan in Casebook.open(book).scans.scans(None))
    code, said, _ = skindx("casebook", "scans", book)
    assert (code, "2 scans" in said, "back" in said) == (0, True, True)
    out = tmp_path / "compared"
    code, said, _ = skindx("casebook", "compare", book, first, second, "--out", str(out))
    assert (code, "grown" in said, (out / "comparison.html").is_file()) == (0, True, True)
    code, said, _ = skindx("casebook", "delete", book, first, "--yes")
    assert (code, said) == (0, f"{first} is deleted\n")
    assert [scan.id for scan in Casebook.open(book).scans.scans(None)] == [second]


def test_scans_are_compared_with_consent_to_it_alone(
    book: Casebook, visits: tuple[Path, Path]
) -> None:
    first = keep(book, visits[0])
    second = book.scans.keep("ann", visits[1], patient="P-1", view="back", consent=True)
    refused = pytest.raises(UserError, match="without consent to comparison")
    with refused, compared(book.scans, "ann", first, second):
        pass
