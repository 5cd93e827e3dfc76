"""What a file is by its first bytes; names and Content-Type are never believed."""

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"\x89PNG\r\n\x1a\n", ".png"),
    (8, b"WEBP", ".webp"),
    (0, b"BM", ".bmp"),
    (0, b"II*\x00", ".tif"),
    (0, b"MM\x00*", ".tif"),
)


def picture_suffix(head: bytes) -> str | None:
    """Return the suffix of the picture format that the first bytes show, None for anything else.

    `head` needs at least 12 bytes. GIF and SVG are refused: one is a film, the other a program.
    """
    for offset, signature, suffix in _SIGNATURES:
        if head[offset : offset + len(signature)] == signature:
            if suffix == ".webp" and head[:4] != b"RIFF":
                continue
            return suffix
    return None
