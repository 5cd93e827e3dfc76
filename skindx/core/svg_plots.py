"""Plots for pages: matplotlib figures as SVG in the page's colours, without references."""

import io
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = ("ink", "soft", "line", "blue", "on-blue", "orange", "green", "violet", "grey")
_VARIABLES = {
    f"#{number:02d}{number:02d}{number:02d}": name for number, name in enumerate(_NAMES, 1)
}
INK, SOFT, LINE, BLUE, ON_BLUE, ORANGE, GREEN, VIOLET, GREY = _VARIABLES
"""Colours that stand for variables of a page's style sheet, which differ in light and dark."""

_FONT_PX = 12
_DPI = 72
"""Resolution at which one unit of the SVG is one pixel of the page."""


@dataclass(frozen=True)
class Plot:
    """A figure with the text that stands for it, and what is shown over its marks."""

    figure: "Figure"
    axes: "Axes"
    label: str
    """Alternative text."""
    titles: dict[str, str] = field(default_factory=dict)
    """The `gid` of a mark -> what a pointer over it shows."""

    def svg(self) -> Markup:
        """Return an `svg` element; text stays text, and every value is escaped."""
        from matplotlib import rc_context
        from matplotlib.text import Text

        for text in self.figure.findobj(Text):
            text.set_parse_math(False)  # a name may hold a dollar sign
            text.set_fontsize(_FONT_PX)
        drawn = io.StringIO()
        with rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
            # The browser draws the text, in a font of its own.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            self.figure.savefig(
                drawn, format="svg", bbox_inches="tight", pad_inches=0.03, transparent=True
            )
        root = ET.fromstring(drawn.getvalue())  # noqa: S314 - matplotlib wrote it
        paths = root.iter("{http://www.w3.org/2000/svg}path")
        marks = {f"#{node.get('id')}": node for node in paths if node.get("id")}
        _, _, width, height = root.attrib["viewBox"].split()
        clean = ET.Element("svg", width=width, height=height, viewBox=root.attrib["viewBox"])
        clean.attrib |= {"role": "img", "aria-label": self.label}
        for child in root:
            clean.extend(_cleaned(child, marks, self.titles))
        written = ET.tostring(clean, encoding="unicode")
        for colour, variable in _VARIABLES.items():
            written = written.replace(f": {colour}", f": var(--{variable})")
        return Markup(written)  # noqa: S704 - ElementTree has escaped every value


def new_plot(width: float, height: float, label: str) -> Plot:
    """Return a plot whose axes are so many pixels large; labels stand outside of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.tick_params(bottom=False, left=False, labelcolor=SOFT)
    axes.spines[:].set_color(LINE)
    axes.set_axisbelow(True)
    return Plot(figure, axes, label)


def _cleaned(
    node: ET.Element, marks: dict[str, ET.Element], titles: dict[str, str]
) -> list[ET.Element]:
    """Return what of a node belongs into a page: no metadata, no style sheet, no reference."""
    tag = node.tag.rpartition("}")[2]
    if tag in {"metadata", "defs", "style"}:
        return []
    children = [clean for child in node for clean in _cleaned(child, marks, titles)]
    if tag == "g":
        title = titles.get(node.get("id", ""))
        if title is None:
            return children
        group = ET.Element("g")
        ET.SubElement(group, "title").text = title
        group.extend(children)
        return [group]
    if tag == "use":
        return [_placed(node, marks)]
    clean = ET.Element(tag)
    clean.text = node.text
    for name in ("d", "x", "y", "transform", "style"):
        if value := node.get(name):
            clean.set(name, " ".join(value.split()))
    if tag == "text":
        styles = [part for part in clean.get("style", "").split("; ") if "font" not in part]
        clean.set("style", "; ".join(styles))
    clean.extend(children)
    return [clean]


def _placed(use: ET.Element, marks: dict[str, ET.Element]) -> ET.Element:
    """Return a mark drawn where matplotlib only refers to it."""
    mark = marks[use.attrib["{http://www.w3.org/1999/xlink}href"]]
    x, y = use.get("x", "0"), use.get("y", "0")
    styles = [style for style in (use.get("style"), mark.get("style")) if style]
    return ET.Element(
        "path",
        d=" ".join(mark.attrib["d"].split()),
        transform=f"translate({x} {y})",
        style="; ".join(styles),
    )
