from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.data.layout import LEDGER
from skindx.data.ledger import LedgerRow, open_ledger, read_ledger, read_lines, whole_size

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
rows = st.builds(LedgerRow, url=text, label=text, status=text, detail=text, licence=text)
unique = st.lists(rows, max_size=5, unique_by=lambda row: (row.url, row.label))


def write(dataset: Path, *new: LedgerRow) -> None:
    with open_ledger(dataset) as ledger:
        for row in new:
            ledger.append(row)


@given(unique)
def test_rows_come_back_equal_and_notes_are_no_rows(
    tmp_path_factory: pytest.TempPathFactory, written: list[LedgerRow]
) -> None:
    dataset = tmp_path_factory.mktemp("dataset")
    with open_ledger(dataset) as ledger:
        for row in written:
            ledger.append(row)
            ledger.note("progress", known=3)
    assert read_ledger(dataset) == written
    assert whole_size(dataset) == (dataset / LEDGER).stat().st_size


@given(unique, st.data())
def test_torn_at_any_byte_no_whole_row_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[LedgerRow],
    data: st.DataObject,
) -> None:
    dataset = tmp_path_factory.mktemp("dataset")
    write(dataset, *written)
    content = (dataset / LEDGER).read_bytes()
    cut = data.draw(st.integers(0, len(content)))
    (dataset / LEDGER).write_bytes(content[:cut])
    whole = written[: content[:cut].count(b"\n")]
    assert read_ledger(dataset) == whole
    late = LedgerRow("http://late/ü", "x", "stored")
    write(dataset, late)
    assert read_ledger(dataset) == [*whole, late]


def test_a_torn_tail_longer_than_one_block_is_cut_off(tmp_path: Path) -> None:
    write(tmp_path, LedgerRow("http://a", "A", "stored"))
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"url": "' + b"x" * 200_000)
    write(tmp_path, LedgerRow("http://b", "A", "stored"))
    assert [row.url for row in read_ledger(tmp_path)] == ["http://a", "http://b"]


def test_the_last_row_of_a_url_and_label_counts(tmp_path: Path) -> None:
    first = LedgerRow("http://a", "A", "timeout")
    again = LedgerRow("http://a", "A", "stored")
    other = LedgerRow("http://a", "B", "timeout")
    write(tmp_path, first, other, again)
    assert read_ledger(tmp_path) == [again, other]


def test_following_reads_whole_lines_only(tmp_path: Path) -> None:
    write(tmp_path, LedgerRow("http://a", "A", "stored"))
    end = read_lines(tmp_path)[1]
    with (tmp_path / LEDGER).open("ab") as file:
        file.write(b'{"note": "progress"')
        file.flush()
        assert read_lines(tmp_path, end) == ([], end)
        file.write(b"}\n")
    assert read_lines(tmp_path, end)[0] == [{"note": "progress"}]


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'{"uri": "http://a"}\n'])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / LEDGER).write_bytes(line)
    with pytest.raises(UserError, match=r"delete (its|that) line"):
        read_ledger(tmp_path)
