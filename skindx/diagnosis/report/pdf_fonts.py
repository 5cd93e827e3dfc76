"""The fonts that a printed page is set in, of this machine, and Latin-1 where there is none."""

import importlib.util
import unicodedata
from pathlib import Path

_MORE = ("truetype/wqy/wqy-microhei.ttc", "truetype/droid/DroidSansFallbackFull.ttf")
"""Below /usr/share/fonts, from Debian's fonts-wqy-microhei, which has Korean too, and
fonts-droid-fallback."""

_LATIN_SIGNS = str.maketrans(
    {"•": "·", "–": "-", "—": "-", "’": "'", "‘": "'", "“": '"', "”": '"', "…": "..."}
)


def dejavu() -> Path | None:
    """Return the folder of DejaVu Sans, without importing matplotlib; None if it is not there."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf"
    return folder if (folder / "DejaVuSans-Bold.ttf").is_file() else None


def more_letters(fonts: Path = Path("/usr/share/fonts")) -> Path | None:
    """Return a font for Chinese and Japanese, which DejaVu lacks; None if there is none."""
    return next((fonts / name for name in _MORE if (fonts / name).is_file()), None)


def in_latin(words: str) -> tuple[str, bool]:
    """Return words in the letters of Latin-1, and whether none was replaced."""
    plain = words.translate(_LATIN_SIGNS)
    shown = "".join(_latin(char) for char in plain)
    return shown, shown == plain


def _latin(char: str) -> str:
    try:
        char.encode("latin-1")
    except UnicodeEncodeError:
        return unicodedata.normalize("NFKD", char).encode("latin-1", "ignore").decode() or "?"
    return char
