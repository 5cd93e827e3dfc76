"""skindx publish on the command line."""

from pathlib import Path

import pytest
from command_line import Skindx
from paint_images import encode, paint
from small_dataset import SmallDataset, free_dataset

from skindx.data.publish.published_rows import read_published


def test_what_was_published_and_withheld_is_reported(skindx: Skindx, tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    small.add(licence="CC BY-ND 4.0")
    turned = encode(
        paint(50),
        exif=bytes.fromhex("45786966000049492a0008000000010012010300010000000600000000000000"),
    )
    small.add(turned, width=96, height=120)
    dataset, pub = small.write(fetch={"contact": "recipe@example.org"}), tmp_path / "pub"
    code, _, error = skindx("publish", dataset, "--out", pub, "--format", "imagefolder")
    assert code == 2
    assert error.startswith("error: 18 of the 18 images")
    assert "were not checked" in error
    assert error.count("\n") == 1
    assert not pub.exists()
    arguments = ("publish", dataset, "--out", pub, "--format", "imagefolder", "--unaudited")
    code, reported, _ = skindx(*arguments, "--set", "version=2.0.1")
    assert code == 0
    assert "17 of 18 images published." in reported
    assert "1 withheld: licence-no-derivatives" in reported
    assert "1 coded once more" in reported
    card = (pub / "README.md").read_text()
    assert "recipe@example.org" in card
    assert "Version 2.0.1" in card
    (once_more,) = [row for row in read_published(pub) if row.reencoded]
    assert (once_more.width, once_more.height) == (96, 120)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "form=hub"], "there is no setting 'form'; did you mean 'format'?"),
        (["--set", "shard_mb=0"], "shard_mb"),
        (["--set", "version=1.0"], "three numbers, such as 1.0.0"),
        (["--contact", "x" * 201], "contact"),
    ],
)
def test_mistakes_are_one_sentence(
    skindx: Skindx, tmp_path: Path, arguments: list[str], said: str
) -> None:
    dataset = SmallDataset(tmp_path / "data")
    dataset.add()
    code, _, error = skindx("publish", dataset.write(), "--out", tmp_path / "pub", *arguments)
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "pub").exists()
