"""How large a photo of a body may be, and what is refused before a pixel is decoded."""

from dataclasses import dataclass

from skindx.imaging.formats import DamagedImage

MAX_PIXELS = 2_000_000_000
MAX_BYTES = 4 << 30
MAX_SIDE = 150_000
"""Pixels: rows are decoded whole, some of them at a time."""
MIN_SIDE = 256
"""Pixels of the shorter side: below, there is nothing to search through."""
MAX_RATIO = 20
MOST_PIXELS_A_BYTE, FREE_PIXELS = 80, 12_000_000
"""Photos have 2 to 30 pixels a byte of file; an empty JPEG has 64. Larger images with more
are bombs."""
MAX_WHOLE_PIXELS = 120_000_000
"""Of a file whose decoder needs all pixels, or all coefficients, in memory at once."""
MEMORY_MB, BASE_S, SECONDS_A_MB = 1500, 600, 2
"""Of the process that decodes: its private memory, and its time by the file's size."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself before its pixels are decoded."""

    suffix: str
    """.jpg, .png, .webp or .tif, by the first bytes."""
    size_bytes: int
    width: int
    height: int
    """Pixels as stored, before EXIF's orientation."""
    pages: int
    bits: int
    """Of a channel."""
    colours: str
    """libvips' interpretation, such as srgb, b-w or cmyk."""
    interlaced: bool

    def check(self, most_pixels: int = MAX_PIXELS) -> None:
        """Raise DamagedImage, whose message ends in what to do, for what is not scanned."""
        for problem, reason in (
            (self._size(most_pixels), "too-many-pixels"),
            (self._kind(), "unsupported-format"),
            (self._whole(), "decode-memory"),
        ):
            if problem:
                raise DamagedImage(problem, reason)

    def _size(self, most_pixels: int) -> str:
        pixels, size = self.width * self.height, f"{self.width} x {self.height} pixels"
        if pixels > most_pixels or max(self.width, self.height) > MAX_SIDE:
            return (
                f"it has {size}, and at most {most_pixels} in all and {MAX_SIDE} on a side are "
                "scanned; cut it into parts"
            )
        if pixels > FREE_PIXELS and pixels > MOST_PIXELS_A_BYTE * self.size_bytes:
            return (
                f"it names {size} in {self.size_bytes} bytes, as no photo does; export the "
                "photo again"
            )
        if min(self.width, self.height) < MIN_SIDE:
            return (
                f"it has {size}, and a scan needs {MIN_SIDE} on each side; for a photo of one "
                "lesion use `skindx diagnose`"
            )
        if max(self.width, self.height) > MAX_RATIO * min(self.width, self.height):
            return f"it has {size}; give one that is at most {MAX_RATIO} times longer than wide"
        return ""

    def _kind(self) -> str:
        if self.pages > 1:
            return f"it has {self.pages} images, as animations have; save the one to be scanned"
        if self.colours == "cmyk":
            return "it has the colours of print (CMYK); save it as sRGB, for example as JPEG"
        if self.bits != 8:
            return f"it has {self.bits} bits a channel; save it with 8 bits, for example as JPEG"
        if self.colours not in ("srgb", "rgb", "b-w"):
            return f"its colours are stored as {self.colours}; save it as sRGB, for example as JPEG"
        return ""

    def _whole(self) -> str:
        """Say which files cannot be read in pieces, where that would take too much memory."""
        if self.width * self.height <= MAX_WHOLE_PIXELS:
            return ""
        if self.suffix == ".jpg" and self.interlaced:
            return (
                "it is a large progressive JPEG, which cannot be read in pieces; convert it "
                "without loss: jpegtran -copy all -outfile sequential.jpg photo.jpg"
            )
        if self.suffix == ".webp" or self.interlaced:
            name = "WebP" if self.suffix == ".webp" else "interlaced PNG"
            return (
                f"it is a large {name}, which cannot be read in pieces; convert it without loss: "
                "vips tiffsave photo out.tif --tile --compression deflate"
            )
        return ""
