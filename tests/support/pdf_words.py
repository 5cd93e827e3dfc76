"""What a PDF says, for tests that read one."""

import zlib


def words_of(pdf: bytes) -> str:
    """Return what a PDF in its own Helvetica says, in the order of drawing."""
    said = []
    for part in pdf.split(b"stream\n")[1:]:
        try:
            page = zlib.decompress(part.split(b"\nendstream")[0])
        except zlib.error:
            continue
        drawn = [line for line in page.split(b"\n") if b") Tj" in line]
        said += [line.rsplit(b") Tj")[0].split(b"(", 1)[1] for line in drawn]
    return b" ".join(said).decode("latin-1")
