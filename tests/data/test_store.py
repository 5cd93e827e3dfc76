from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.layout import store_bytes
from skindx.imaging.image_formats import image_suffix


def test_the_same_bytes_are_stored_once(tmp_path: Path) -> None:
    first = store_bytes(tmp_path, b"skin", ".jpg")
    assert store_bytes(tmp_path, b"skin", ".jpg") == first
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [tmp_path / first[1]]
    assert files[0].read_bytes() == b"skin"
    assert files[0].stem == first[0]


@pytest.mark.parametrize(
    ("head", "suffix"),
    [
        (b"\xff\xd8\xff\xe0" + bytes(12), ".jpg"),
        (b"\x89PNG\r\n\x1a\n" + bytes(8), ".png"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", ".webp"),
        (b"XXXX\x00\x00\x00\x00WEBPVP8 ", None),
        (b"GIF89a" + bytes(10), None),
        (b"<svg xmlns=...>", None),
        (b"<!doctype html>", None),
        (b"", None),
    ],
)
def test_formats_by_magic_bytes(head: bytes, suffix: str | None) -> None:
    assert image_suffix(head) == suffix


@given(st.binary(max_size=16))
def test_any_bytes_have_an_answer(head: bytes) -> None:
    assert image_suffix(head) in {None, ".jpg", ".png", ".webp", ".bmp", ".tif"}
