"""How a person confirms the ruler on a photo: an image with its ticks, and a question."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from skindx.scan.ruler.find import Ruler


class AskAboutRulers:
    """Writes OUT-ruler-N.png for each photo and asks; `confirmed`: the images were checked.

    They stand beside OUT, which holds nothing while no scan has begun.
    """

    def __init__(self, out: Path, *, confirmed: bool) -> None:
        self.out, self.confirmed, self.asked = out, confirmed, 0

    def __call__(self, ruler: "Ruler", image_HW3: "NDArray[np.uint8]") -> bool:
        """Return whether a person says that the lines lie on the ticks. Raises UserError."""
        from PIL import Image

        self.asked += 1
        file = self.out.with_name(f"{self.out.name}-ruler-{self.asked}.png")
        shown = file.is_file()
        with atomic_file(file) as temporary:
            Image.fromarray(image_HW3).save(temporary, "PNG")
        print(f"{ruler.sentence} The ticks are drawn in {file}.")
        if self.confirmed and shown:
            return True
        if sys.stdin.isatty():
            return typer.confirm("Are the lines on the ticks, and the thick ones 1 cm apart?")
        raise UserError(
            f"the ruler in {file} was not confirmed; look at it, and if its lines lie on the "
            f"ticks, run the same command with --confirm-ruler."
        )
