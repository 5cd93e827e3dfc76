"""Bodies that came compressed although none was asked for."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.data.crawl.transport import DecodingError, decoded, zstd

TEXT = b"<html>" + bytes(range(256)) * 40


def raw_deflate(data: bytes) -> bytes:
    machine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return machine.compress(data) + machine.flush()


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate ": raw_deflate,
    "br": brotli.compress,
    "zstd": zstd.compress,
}


@pytest.mark.parametrize("coding", CODERS)
def test_every_usual_coding_is_undone(coding: str) -> None:
    assert decoded(CODERS[coding](TEXT), coding, 1_000_000) == TEXT
    with pytest.raises(DecodingError, match="more than 1000 bytes"):
        decoded(CODERS[coding](TEXT), coding, 1000)


def test_several_codings_members_and_frames() -> None:
    assert decoded(gzip.compress(brotli.compress(TEXT)), "br, gzip", 1_000_000) == TEXT
    assert decoded(gzip.compress(TEXT) * 2, "gzip", 1_000_000) == TEXT * 2
    assert decoded(zstd.compress(TEXT) * 2, "zstd", 1_000_000) == TEXT * 2
    with pytest.raises(DecodingError, match="4 times"):
        decoded(TEXT, "br, br, br, br", 1_000_000)
    with pytest.raises(DecodingError, match="exi is not known"):
        decoded(TEXT, "exi", 1_000_000)


@pytest.mark.parametrize("coding", CODERS)
def test_a_bomb_ends_at_the_ratio(coding: str) -> None:
    bomb = CODERS[coding](bytes(5_000_000))
    with pytest.raises(DecodingError, match="unpacks to more than"):
        decoded(bomb, coding, 1 << 30)


@pytest.mark.parametrize("coding", CODERS)
def test_what_is_cut_off_is_not_taken_for_whole(coding: str) -> None:
    with pytest.raises(DecodingError):
        decoded(CODERS[coding](TEXT)[:-5], coding, 1_000_000)


def test_a_zstd_window_larger_than_8_mb_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    wide = zstd.ZstdCompressor(options=options)
    data = wide.compress(b"a") + wide.flush()
    with pytest.raises(DecodingError):
        decoded(data, "zstd", 1_000_000)


@given(st.binary(max_size=200), st.lists(st.sampled_from(list(CODERS)), max_size=4))
def test_no_body_raises_anything_else(body: bytes, codings: list[str]) -> None:
    try:
        made = decoded(body, ", ".join(codings), 100_000)
    except DecodingError:
        return
    assert len(made) <= 100_000
