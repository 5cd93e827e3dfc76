from pathlib import Path

import pytest
from command_line import Skindx
from network_guard import run_guarded
from tiny_dataset import tiny_dataset, with_embeddings


def test_an_audit_reaches_nobody_and_says_nothing_odd(tmp_path: Path) -> None:
    tiny_dataset(tmp_path / "data", 4)
    done = run_guarded(["-m", "skindx", "audit", tmp_path / "data", "--workers", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.calls, done.stderr) == ([], "")
    assert "4 images, 4 of them examined now." in done.stdout
    assert (tmp_path / "data" / "flags.parquet").is_file()


def test_labels_are_reviewed(skindx: Skindx, tmp_path: Path) -> None:
    with_embeddings(tmp_path)
    code, said, err = skindx("audit", str(tmp_path), "--labels")
    assert code == 0, err
    assert "labels are in doubt" in said
    assert (tmp_path / "label_review.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("audit", "nowhere"), "not a dataset"),
        (("audit", "{data}", "--labels", "--off-topic"), "cannot be given together"),
        (("audit", "{data}", "--labels"), "skindx dedup embed"),
        (
            ("audit", "{data}", "--labels", "--weights", "w"),
            "--weights was removed in skindx 1.0; give",
        ),
        (("audit", "{data}", "--set", "fase=0.3"), "did you mean 'face'"),
        (("dedup", "embed", "{data}"), "one trained network"),
        (("dedup", "embed", "{data}", "--weights", "no.pth"), "weights file no.pth"),
    ],
)
def test_a_mistake_is_one_sentence(
    skindx: Skindx, tmp_path: Path, arguments: tuple[str, ...], reported: str
) -> None:
    tiny_dataset(tmp_path, 4)
    before = {path.name for path in tmp_path.iterdir()}
    code, _, err = skindx(*(argument.replace("{data}", str(tmp_path)) for argument in arguments))
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert reported in err
    assert {path.name for path in tmp_path.iterdir()} == before
