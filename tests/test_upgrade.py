"""`skindx doctor --upgrade`: what 0.1 and 0.2 wrote, what is of today, and what it refuses."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Skindx

from skindx.core.atomic_files import OLD, keep_old, sha256_file
from skindx.core.errors import UserError
from skindx.core.private_files import renew_private
from skindx.data.answer_log import AnswerLog, answer_now, take_in_older
from skindx.scan.compare.registration import read_scan
from skindx.scan.outputs.scan_files import COCO, CSV, PARQUET, renew_tables
from skindx.upgrade import upgrade

FIXTURES = Path(__file__).parent / "fixtures"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
FILES = (COCO, CSV, PARQUET)


def _states(path: Path) -> dict[str, str]:
    return {str(Path(one.path).relative_to(path)): one.state for one in upgrade(str(path))}


def _older_scan(folder: Path) -> Path:
    """Make a scan as 0.2 wrote it before its tables named what the model does not know.

    By hand after that schema: without two columns, and with risks of 0 for lack of urgent classes.
    """
    shutil.copytree(FIXTURES / "v0_2/scan", folder)
    with pq.ParquetFile(folder / PARQUET) as file:
        table = file.read().drop_columns(["no_urgent_risk", "not_known"])
    at = table.column_names.index("urgent_risk")
    table = table.set_column(at, "urgent_risk", pa.array([0.0] * len(table)))
    pq.write_table(table, folder / PARQUET)
    rows = [
        {k: v for k, v in row.items() if k not in ("no_urgent_risk", "not_known")}
        | {"urgent_risk": "0.0"}
        for row in csv.DictReader((folder / CSV).read_text().splitlines())
    ]
    with (folder / CSV).open("w", newline="") as text:
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    coco = json.loads((folder / COCO).read_text())
    for annotation in coco["annotations"]:
        annotation["urgent_risk"] = 0.0
    (folder / COCO).write_text(json.dumps(coco))
    return folder


@pytest.mark.parametrize("version", ["v0_1", "v0_2"])
def test_a_folder_of_an_older_version(tmp_path: Path, version: str) -> None:
    """Its case book is converted; what has a hash keeps it; the second time changes nothing."""
    written = Path(shutil.copytree(FIXTURES / version, tmp_path / "written"))
    for keys in written.glob("*.keys"):
        keys.chmod(0o600)  # git does not keep it
    hashes = {file: sha256_file(file) for file in written.rglob("*") if file.is_file()}
    (half,) = (written / "half/checkpoints/a").iterdir()
    expected = {
        "cases.db": "converted" if version == "v0_1" else "current",
        **{"dataset": "as it is", "half": "current", "whole": "current"},
        str(half.relative_to(written)): "current",
        "whole/bundle": "as it is",
        "whole/evaluation": "as it is" if version == "v0_1" else "current",
        **({"scan": "current"} if version == "v0_2" else {}),
    }
    assert _states(written) == expected
    assert _states(written) == expected | {"cases.db": "current"}
    changed = {f.name for f, sha256 in hashes.items() if sha256_file(f) != sha256}
    assert changed <= {"cases.db", "cases.db.keys"}


def test_a_bundle_says_what_it_lacks_and_how_to_get_it(tmp_path: Path) -> None:
    whole = FIXTURES / "v0_1/whole"
    (bundle,) = upgrade(str(whole / "bundle"))
    assert bundle.words.startswith("of skindx 0.1.0, gives the answers that it gave")
    assert "fingerprints" in bundle.words
    assert f"skindx train DATASET --config {whole}/train.yaml --out {whole}" in bundle.words
    alone = shutil.copytree(whole / "bundle", tmp_path / "alone")
    (bundle,) = upgrade(str(alone))
    assert "who trained it can pack it again: `skindx train` on its run with them" in bundle.words


def test_an_older_scan_gets_the_tables_of_today(tmp_path: Path) -> None:
    scan = _older_scan(tmp_path / "scan")
    before = read_scan(scan).views[0]
    hashes = {name: sha256_file(scan / name) for name in FILES}
    (one,) = upgrade(str(scan))
    assert one.state == "converted"
    assert {name: sha256_file(scan / f"{name}{OLD}") for name in FILES} == hashes
    after = read_scan(scan).views[0]
    assert (after.boxes_L4 == before.boxes_L4).all()
    rows = list(csv.DictReader((scan / CSV).read_text().splitlines()))
    assert {row["urgent_risk"] for row in rows} == {""}
    assert all("no urgent condition" in row["no_urgent_risk"] for row in rows)
    assert all("squamous cell carcinoma" in row["not_known"] for row in rows)
    assert {a["urgent_risk"] for a in json.loads((scan / COCO).read_text())["annotations"]} == {
        None
    }
    with (
        pq.ParquetFile(scan / PARQUET) as now,
        pq.ParquetFile(FIXTURES / "v0_2/scan" / PARQUET) as then,
    ):
        assert now.schema_arrow.equals(then.schema_arrow, check_metadata=True)
    assert renew_tables(scan) == []


def test_a_killed_renewal_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = _older_scan(tmp_path / "scan")
    hashes = {name: sha256_file(scan / name) for name in FILES}
    written: list[Path] = []

    def killed(path: Path, content: bytes) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path)
        return renew_private(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("skindx.scan.outputs.scan_files.renew_private", killed)
        with pytest.raises(KeyboardInterrupt):
            renew_tables(scan)
    renew_tables(scan)
    assert {name: sha256_file(scan / f"{name}{OLD}") for name in FILES} == hashes
    assert _states(tmp_path) == {"scan": "current"}


def test_older_answers_become_rows_of_decisions(tmp_path: Path) -> None:
    """They come before all others, and once; the old files stay beside."""
    (tmp_path / "skin_answers.csv").write_text(f"sha256,verdict,by\n{A},not skin,x\n{C},skin,x\n")
    (tmp_path / "copy_answers.csv").write_text(f"sha256_a,sha256_b,verdict\n{B},{A},same\n")
    (tmp_path / "decisions.csv").write_text(f"sha256,verdict,mine\n{B},keep,7\n")
    log = AnswerLog(tmp_path)
    log.add((A,), answer_now("skin", "y"))
    before = {q: log.answers(q) for q in ("image", "skin", "copy")}  # type: ignore[arg-type]
    older = {
        name: (tmp_path / name).read_text() for name in ("skin_answers.csv", "copy_answers.csv")
    }
    assert take_in_older(tmp_path) == {"skin_answers.csv": 2, "copy_answers.csv": 1}
    again = AnswerLog(tmp_path)
    assert {q: again.answers(q) for q in before} == before  # type: ignore[arg-type]
    assert again.revision("skin", (A,)) == 2
    rows = list(csv.DictReader((tmp_path / "decisions.csv").read_text().splitlines()))
    assert [row["mine"] for row in rows] == ["", "", "", "7", ""]
    for name, text in older.items():
        assert (tmp_path / f"{name}{OLD}").read_text() == text
        (tmp_path / name).write_text(text)  # as a kill would leave them
    take_in_older(tmp_path)
    assert list(csv.DictReader((tmp_path / "decisions.csv").read_text().splitlines())) == rows
    assert take_in_older(tmp_path) == {}


def test_a_row_that_is_not_understood_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "skin_answers.csv").write_text(f"sha256,verdict\n{A},perhaps\n")
    with pytest.raises(UserError, match="line 2: the verdict 'perhaps' does not fit here"):
        take_in_older(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["skin_answers.csv"]


def test_an_old_file_of_somebody_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text("before")
    (tmp_path / "table.csv.old").write_text("somebody's")
    with pytest.raises(
        UserError, match=r"table\.csv\.old exists, but a copy .* move .*table\.csv\.old away"
    ):
        renew_private(file, b"after")
    assert (file.read_text(), (tmp_path / "table.csv.old").read_text()) == ("before", "somebody's")
    (tmp_path / "table.csv.old").unlink()
    assert keep_old(file) == renew_private(file, b"after")
    assert renew_private(file, b"after") is None


def test_what_is_refused(tmp_path: Path, skindx: Skindx) -> None:
    for path, sentence in (
        (tmp_path / "absent", "does not exist; give a dataset"),
        (tmp_path, "has nothing that skindx can upgrade; give a dataset"),
    ):
        code, out, err = skindx("doctor", "--upgrade", path)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1


def test_one_that_cannot_be_opened_does_not_stop_the_others(tmp_path: Path, skindx: Skindx) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/bundle.json").write_text('{"format": 7}')
    shutil.copytree(FIXTURES / "v0_2/scan", tmp_path / "b")
    shutil.copytree(FIXTURES / "v0_2/scan", tmp_path / "c")
    summary = json.loads((tmp_path / "c/scan.json").read_text()) | {"format": 2}
    (tmp_path / "c/scan.json").write_text(json.dumps(summary))
    (tmp_path / "link").symlink_to(FIXTURES / "v0_1/cases.db")
    code, out, _ = skindx("doctor", "--upgrade", tmp_path)
    lines = out.splitlines()
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == ["failed", "current", "failed"]
    assert "install the newest skindx" in lines[0]
    assert "format 2, but this version of skindx reads 1" in lines[2]
