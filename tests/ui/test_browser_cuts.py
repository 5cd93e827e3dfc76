"""The form and the server judge by one rule whether a lesion is cut off."""

import base64
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from skin_photo import TONES, skin_pixels

from skindx.imaging.cut_lesions import Edges, cut_by
from skindx.ui.page_basics import script

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
EXAMPLES = Path(__file__).parents[2] / "models/ham10000/skindx_ham10000/examples"
WHOLE: Edges = (0, 0, 1, 1)


def square_of(width: int, height: int) -> Edges:
    side = min(width, height)
    across, down = (1 - side / width) / 2, (1 - side / height) / 2
    return (across, down, 1 - across, 1 - down)


def photos() -> dict[str, np.ndarray]:
    """Return what the rule on the server is tested with, and more: cut, whole, pale, ragged."""
    found = {}
    for tone in (3, 6):
        plain = np.full((240, 320, 3), TONES[tone]) * 1.0
        grain = skin_pixels(320, 240, seed=8, skin_type=tone).astype(float).mean(2, keepdims=True)
        plain *= 1 + (grain / grain.mean() - 1) * 0.02
        down, across = np.mgrid[:240, :320] / 240
        for x, y, radius, shade in (
            (0.667, 0.5, 0.25, 0.5), (0.4, 0.5, 0.35, 0.5), (0.3, 0.5, 0.35, 0.5),
            (0.4, 0.3, 0.42, 0.5), (0.3, 0.5, 0.35, 0.9), (0, 0, 0.3, 0.5), (0.667, 0.5, 0.6, 0.5),
        ):  # fmt: skip
            spot = np.hypot(down - y, across - x) < radius
            pixels = (plain * np.where(spot, shade, 1.0)[..., None]).clip(0, 255)
            found[f"type {tone} at {x}, {y}, {radius}, {shade}"] = pixels.astype(np.uint8)
    middle = found["type 3 at 0.667, 0.5, 0.25, 0.5"]
    hair, shadow, rim = middle.copy(), middle.copy(), middle.copy()
    hair[118:122], hair[:, 158:162] = 30, 30
    shadow[120:] = shadow[120:] // 2
    rim[np.hypot(down - 0.5, across - 0.667) > 0.54] = 0
    flat = {"grey": np.full((240, 320, 3), 120, np.uint8), "tall": middle.transpose(1, 0, 2)}
    found |= {"hair": hair, "shadow": shadow, "rim": rim, **flat}
    for path in sorted(EXAMPLES.glob("*.jpg"))[::3]:
        found[path.stem] = np.asarray(Image.open(path).convert("RGB"))
    return found


def test_the_form_and_the_server_say_the_same_of_a_cut_lesion(browser: "Browser") -> None:
    page = browser.new_page()
    page.set_content("<img>")
    page.evaluate(f"() => {{ {script('crop')}; window.cutBy = cutBy; }}")
    differing, cuts = [], set()
    for name, pixels in photos().items():
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        page.evaluate(
            "(url) => { document.images[0].src = url; return document.images[0].decode(); }",
            f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}",
        )
        square = square_of(pixels.shape[1], pixels.shape[0])
        for crop, seen in (("1", square), ("Infinity", WHOLE)):
            form = page.evaluate(f"() => cutBy(document.images[0], {crop})")
            server = cut_by(pixels, seen)
            cuts.add(server)
            if form != server:
                differing.append((name, crop, form, server))
    page.close()
    assert differing == []
    assert cuts == {"", "square", "edge"}


def test_both_have_the_same_numbers() -> None:
    import skindx.imaging.cut_lesions as server

    said = dict(re.findall(r"([A-Z_]{3,}) = ([\d.]+)", script("crop")))
    names = {"CORNER": "_CORNER", "RIM": "_RIM", "RIM_SHARE": "_RIM_SHARE"}
    for name in set(said) - {"CROP_PIXELS"}:
        assert float(said[name]) == getattr(server, names.get(name, name)), name
