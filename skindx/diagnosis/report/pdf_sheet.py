"""A printed page in plain parts: headings, paragraphs, tables, rows of images.

It is set in fonts of this machine, or in Latin-1 without one.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from skindx.core.machine import require_extra
from skindx.core.text import printable
from skindx.diagnosis.report.pdf_fonts import dejavu, in_latin, more_letters
from skindx.texts.catalogue import spoken, text

if TYPE_CHECKING:
    from PIL import Image


MARGIN_MM, GAP_MM = 16, 3
_WIDTH_MM = 210 - 2 * MARGIN_MM
_LABEL_MM, _EMPTY_MM = 62, 5.2
"""Width of labels, and height of a line to write on beside one."""
_BESIDE_MM = (52, 32)
"""Largest width and height of an image beside labels and values."""
_FINDING_MM = 19
"""Height of the box for a clinician's finding, of four lines."""
_SIGN_OFF_MM = _FINDING_MM + 17
"""Height of all that a clinician fills in."""
_BESIDE_WORDS_MM = 62
"""Least width of words beside a photo."""
_BULLET_MM, _WHOLE_TABLE_MM = 4, 120
"""Width of a bullet, and the height up to which a table stands on one page."""
_CAPTION_MM, _LEGEND_MM = 8, 40
"""Room below photos for their captions, and of a legend's colours."""
_RULED_MM, _LAST_RULE_MM = 10, 275
"""Room between two lines of a page for notes, and where the last of them may be."""
_INK, _FAINT, _LINE = (20, 28, 38), (95, 105, 118), (200, 206, 214)


class Sheet:
    """An A4 document that grows downwards, set in DejaVu Sans where it is found.

    Letters that it lacks come from `more_letters`. Without it, the PDF's own Helvetica shows
    others than Western European letters without their accents, or as question marks.
    """

    def __init__(self, title: str, when: datetime, footer: tuple[str, str] | None = None) -> None:
        """Set a footer on each page: names, and facts before the page's number; else the title.

        Raise UserError without fpdf2, which the extra `app` has.
        """
        require_extra("serve", "fpdf", purpose="a PDF report")
        from fpdf import FPDF

        self._below, self._is_numbered = footer or ("", title), True
        self._letters: set[int] = set()
        """Code points that the open fonts have."""
        self._written = ""
        """Paragraphs and values so far."""
        self.scale = 1.0
        """Size of letters against the usual one; the footer keeps its own."""
        self.lacking = False
        """Whether a letter was replaced so far, since no font has it."""
        self.pdf = FPDF(format="A4")
        self.pdf.set_margin(MARGIN_MM)
        self.pdf.c_margin = 0  # words, images and lines begin at the same place
        self.pdf.set_auto_page_break(True, MARGIN_MM)
        self.pdf.set_title(title)
        self.pdf.set_lang(spoken())
        self.pdf.set_producer("skindx")
        self.pdf.set_creation_date(when)
        self.pdf.set_image_filter("DCTDecode")
        folder = dejavu()
        self._font = "DejaVu" if folder else "Helvetica"
        if folder:
            self.pdf.add_font("DejaVu", "", folder / "DejaVuSans.ttf")
            self.pdf.add_font("DejaVu", "B", folder / "DejaVuSans-Bold.ttf")
        self.pdf.footer = self._footer  # type: ignore[method-assign]
        self.pdf.add_page()

    def _footer(self) -> None:
        names, facts = map(self._known, self._below)
        page = text("footer_page", page=self.pdf.page_no(), pages="{nb}")
        self.pdf.set_y(4 - MARGIN_MM)
        last = f"{facts} · {page}" if self._is_numbered else facts
        for words, bold in ((names, True), (last, False)):
            self._ink(7.5 / self.scale, bold=bold, faint=True)
            room = len(words)
            while room and self.pdf.get_string_width(words[:room]) > _WIDTH_MM:
                room -= 1
            shown = words if room == len(words) else f"{words[: room - 4]} ..."
            self.pdf.cell(0, 3.6, shown, align="R", new_x="LMARGIN", new_y="NEXT")

    def text(
        self,
        words: str,
        size: float = 9.5,
        *,
        bold: bool = False,
        faint: bool = False,
        fill: tuple[int, int, int] | None = None,
    ) -> None:
        """Write a paragraph; `fill` is the colour behind it."""
        self._ink(size, bold, faint)
        self._written += f"{words}\n"
        if fill:
            self.pdf.set_fill_color(*fill)
        self.pdf.multi_cell(
            0,
            size * (0.5 if size > 8 else 0.45) * self.scale,
            self._known(words),
            fill=fill is not None,
            align="L",
            padding=2 if fill else 0,
            new_x="LMARGIN",
            new_y="NEXT",
        )
        self.pdf.ln(1)

    def heading(self, words: str, room_mm: float = 22) -> None:
        """Write a heading, on the next page where this one has less room for it and its text."""
        if self.pdf.will_page_break(room_mm):
            self.pdf.add_page()
        self.pdf.ln(2.5)
        self.text(words, 11.5, bold=True)

    def section(self, words: str, room_mm: float = 30) -> None:
        """Begin a block of a page that has many, below a line that parts it from the one before."""
        if self.pdf.will_page_break(room_mm):
            self.pdf.add_page()
        else:
            self.pdf.ln(3)
            self.pdf.set_draw_color(*_LINE)
            self.pdf.line(MARGIN_MM, self.pdf.get_y(), MARGIN_MM + _WIDTH_MM, self.pdf.get_y())
        self.heading(words)

    def subheading(self, words: str, room_mm: float) -> None:
        """Write a small heading on the page of what follows, which takes so many millimetres."""
        if self.pdf.will_page_break(9 + min(room_mm, _WHOLE_TABLE_MM)):
            self.pdf.add_page()
        self.pdf.ln(2)
        self.text(words, 9, bold=True)

    def lines(self, facts: Sequence[tuple[str, str]], beside: "Image.Image | None" = None) -> None:
        """Write labels with their values, and a line to write on where a value is empty.

        An image `beside` them stands at the right.
        """
        self.pdf.ln(1)
        high, right, foot = 4.6 * self.scale, float(MARGIN_MM + _WIDTH_MM), 0.0
        if beside:
            scale = min(_BESIDE_MM[0] / beside.width, _BESIDE_MM[1] / beside.height)
            width, height = scale * beside.width, scale * beside.height
            self.pdf.image(beside, right - width, self.pdf.get_y(), width, height)
            right, foot = right - width - GAP_MM, self.pdf.get_y() + height
        for label, value in facts:
            self._ink(9, faint=True)
            self.pdf.set_draw_color(*_INK)
            top = self.pdf.get_y()
            self.pdf.multi_cell(_LABEL_MM, high, self._known(label), align="L")
            lowest = self.pdf.get_y()
            self.pdf.set_xy(MARGIN_MM + _LABEL_MM, top)
            self._ink(9.5)
            if value:
                self._written += f"{value}\n"
                width = right - MARGIN_MM - _LABEL_MM
                self.pdf.multi_cell(width, high, self._known(value), align="L")
                lowest = max(lowest, self.pdf.get_y())
            else:
                lowest = max(lowest, top + _EMPTY_MM)
                self.pdf.line(MARGIN_MM + _LABEL_MM, lowest, right, lowest)
            self.pdf.set_xy(MARGIN_MM, lowest + self.scale)
        self.pdf.set_y(max(self.pdf.get_y(), foot) + 1)

    def strip(
        self,
        images: Sequence["Image.Image"],
        captions: Sequence[str],
        height_mm: float,
        beside: Sequence[str] = (),
        across: int = 0,
    ) -> None:
        """Set images in one row, each with its caption below.

        Each is as wide as so many, or `across` of them, beside each other can be, and no higher
        than `height_mm`. Words `beside` them stand at the right.
        """
        across = across or len(images)
        columns = across + bool(beside)
        room = _WIDTH_MM - (_BESIDE_WORDS_MM if beside else 0) - (columns - 1) * GAP_MM
        width = room / across
        top, lowest = self.pdf.get_y(), 0.0
        if beside:
            used = [min(width, height_mm * one.width / one.height) + GAP_MM for one in images]
            self.pdf.set_xy(MARGIN_MM + sum(used), top)
            self._ink(9.5)
            words = "\n\n".join(map(self._known, beside))
            self.pdf.multi_cell(_WIDTH_MM - sum(used), 4.75 * self.scale, words, align="L")
            lowest = self.pdf.get_y()
        for place, (image, caption) in enumerate(zip(images, captions, strict=True)):
            left = MARGIN_MM + place * (width + GAP_MM)
            scale = min(width / image.width, height_mm / image.height)
            self.pdf.image(image, left, top, scale * image.width, scale * image.height)
            self.pdf.set_xy(left, top + scale * image.height + 0.8)
            self._ink(7.5, faint=True)
            self.pdf.multi_cell(width, 3.6, self._known(caption), align="L")
            lowest = max(lowest, self.pdf.get_y())
        self.pdf.set_xy(MARGIN_MM, lowest)

    def room_above_signature(self) -> float:
        """Return the millimetres that are left for photos above what a clinician fills in."""
        return self.pdf.h - MARGIN_MM - _SIGN_OFF_MM - self.pdf.get_y() - _CAPTION_MM

    def bullets(self, sentences: Sequence[str], heading: str = "", size: float = 9) -> None:
        """Write a list of the sentences that do not stand above, below their heading."""
        listed = [one for one in dict.fromkeys(sentences) if one and one not in self._written]
        if listed and heading:
            if self.pdf.will_page_break(14 * self.scale):
                self.pdf.add_page()
            self.text(heading, 9, bold=True)
        high = 0.45 * size * self.scale
        for one in listed:
            self._ink(size)
            self._written += f"{one}\n"
            words, width = self._known(one), _WIDTH_MM - _BULLET_MM
            if self.pdf.will_page_break(high * self._rows_of(words, width)):
                self.pdf.add_page()
            top = self.pdf.get_y()
            self.pdf.cell(_BULLET_MM, high, self._known("•"))
            self.pdf.set_xy(MARGIN_MM + _BULLET_MM, top)
            self.pdf.multi_cell(width, high, words, align="L", new_x="LMARGIN", new_y="NEXT")
            self.pdf.ln(0.5)
        if listed:
            self.pdf.ln(1)

    def _rows_of(self, words: str, width_mm: float) -> int:
        """Return how many lines words take, with the letters that are set."""
        shown = self.pdf.multi_cell(width_mm, 1, words, align="L", dry_run=True, output="LINES")
        return max(1, len(shown)) if isinstance(shown, list) else 1

    def legend(self, colours: Sequence[tuple[int, int, int]], low: str, high: str) -> None:
        """Draw a bar of colours between what its two ends mean."""
        self._ink(7.5, faint=True)
        top = self.pdf.get_y()
        self.pdf.cell(self.pdf.get_string_width(low) + 2, 4, self._known(low))
        for colour in colours:
            self.pdf.set_fill_color(*colour)
            left, width = self.pdf.get_x(), _LEGEND_MM / len(colours)
            self.pdf.rect(left, top + 0.5, width + 0.05, 3, style="F")
            self.pdf.set_x(left + width)
        self.pdf.set_x(self.pdf.get_x() + 2)
        self.pdf.cell(0, 4, self._known(high), new_x="LMARGIN", new_y="NEXT")
        self.pdf.ln(1)

    def sign_off(
        self, finding: str, ticks: Sequence[str], signs: Sequence[tuple[str, str]]
    ) -> None:
        """Set what a clinician fills in at the page's foot.

        A box for the `finding`, `ticks` with lines to write on, and lines to sign on, each with
        what stands on it already.
        """
        top = self.pdf.h - MARGIN_MM - _SIGN_OFF_MM
        if self.pdf.get_y() > top:
            self.pdf.add_page()
        self.pdf.set_draw_color(*_FAINT)
        self.pdf.rect(MARGIN_MM, top, _WIDTH_MM, _FINDING_MM)
        self.pdf.set_xy(MARGIN_MM + 1.5, top + 1)
        self._ink(8 / self.scale, faint=True)
        self.pdf.cell(_WIDTH_MM, 4, self._known(finding))
        lines = [(f"     {label}", "") for label in ticks]
        self._across(lines, [1 / len(ticks)] * len(ticks), top + _FINDING_MM + 7)
        for place in range(len(ticks)):
            self.pdf.rect(MARGIN_MM + _WIDTH_MM * place / len(ticks), top + _FINDING_MM + 4, 3, 3)
        self._across(signs, (0.42, 0.22, 0.36), top + _FINDING_MM + 15)
        self.pdf.set_xy(MARGIN_MM, self.pdf.h - MARGIN_MM)

    def _across(
        self, lines: Sequence[tuple[str, str]], shares: Sequence[float], foot: float
    ) -> None:
        """Set labels beside each other, each with a line after it and what stands on the line.

        Each has its share of the width; a long value has smaller letters.
        """
        left = float(MARGIN_MM)
        for share, (label, value) in zip(shares, lines, strict=True):
            end = left + share * _WIDTH_MM
            self._ink(8 / self.scale, faint=True)
            self.pdf.set_xy(left, foot - 3.5)
            self.pdf.cell(0, 4, self._known(label))
            start = left + self.pdf.get_string_width(self._known(label)) + 1.5
            room, size, said = end - start - 2 * GAP_MM, 9.0, self._known(value)
            self._ink(size / self.scale)
            while size > 5 and self.pdf.get_string_width(said) > room:
                size -= 0.5
                self._ink(size / self.scale)
            self.pdf.set_xy(start, foot - 4)
            self.pdf.cell(room, 4, said)
            self.pdf.set_draw_color(*_INK)
            self.pdf.line(start, foot + 0.4, start + room, foot + 0.4)
            left = end

    def gap(self) -> None:
        """Leave a little room."""
        self.pdf.ln(1.5)

    @property
    def pages(self) -> int:
        """Pages so far."""
        return int(self.pdf.page_no())

    def page(self, title: str) -> None:
        """Begin a page with its title."""
        self.pdf.add_page()
        self.text(title, 16, bold=True)

    def own_sheet(self, footer: tuple[str, str], notes: tuple[str, str]) -> None:
        """Begin the front of a sheet of paper, also where both sides are printed.

        It has a `footer` of its own, without the number of the page. `notes` are the heading of the
        page with lines that stands before it where it would be the back of a sheet, and why that
        page is there. The first page of a document that has nothing yet is such a front.
        """
        if self._written:
            if self.pages % 2:
                self.pdf.add_page()
                heading, why = notes
                self.text(heading, 16, bold=True)
                self.text(why, faint=True)
                self.pdf.set_draw_color(*_LINE)
                for foot in range(round(self.pdf.get_y()) + _RULED_MM, _LAST_RULE_MM, _RULED_MM):
                    self.pdf.line(MARGIN_MM, foot, MARGIN_MM + _WIDTH_MM, foot)
            self.pdf.add_page()
        self._below, self._is_numbered = footer, False

    def table(
        self, rows: Sequence[Sequence[str]], widths: Sequence[int], *, faint: bool = False
    ) -> None:
        """Write rows, the first of them as the heading.

        A table that the rest of a page does not hold begins on the next one.
        """
        if self.pdf.will_page_break(min(self.table_mm(rows, widths), _WHOLE_TABLE_MM)):
            self.pdf.add_page()
        self._ink(8.5, faint=faint)
        self.pdf.set_draw_color(*_LINE)
        self.pdf.set_fill_color(255)
        with self.pdf.table(
            col_widths=tuple(widths),
            borders_layout="HORIZONTAL_LINES",
            line_height=4.2 * self.scale,
            padding=(0.6, 2, 0.6, 0),
            align="L",
        ) as table:
            for row in rows:
                cells = table.row()
                for cell in row:
                    cells.cell(self._known(cell), align="L")
        self.pdf.ln(1.5)

    def table_mm(self, rows: Sequence[Sequence[str]], widths: Sequence[int]) -> float:
        """Return the height of a table in millimetres."""
        high = 0.0
        for place, row in enumerate(rows):
            self._ink(8.5, bold=place == 0)
            rooms = (_WIDTH_MM * width / sum(widths) - 2 for width in widths)
            found = zip(row, rooms, strict=True)
            lines = max(self._rows_of(self._known(cell), room) for cell, room in found)
            high += 4.2 * self.scale * lines + 1.2
        return high

    def images(self, images: Sequence["Image.Image"], captions: Sequence[str], across: int) -> None:
        """Set images in rows of `across`, each with a line below."""
        width = (_WIDTH_MM - (across - 1) * GAP_MM) / across
        for start in range(0, len(images), across):
            row = images[start : start + across]
            height = min(1.2 * width, max(width * one.height / one.width for one in row))
            if self.pdf.will_page_break(height + 10):
                self.pdf.add_page()
            self.strip(row, captions[start : start + across], height, across=across)
            self.pdf.ln(2)

    def pdf_bytes(self) -> bytes:
        """Return the document; nothing can be added to it any more."""
        document = bytes(self.pdf.output())
        self.close()
        return document

    def close(self) -> None:
        """Close the files of its fonts, also of a document that nobody wants."""
        from fpdf.fonts import TTFFont

        for font in self.pdf.fonts.values():
            if isinstance(font, TTFFont):
                font.ttfont.close()  # it is read as letters are needed, and would stay open

    def _ink(self, size: float, bold: bool = False, faint: bool = False) -> None:
        self.pdf.set_font(self._font, "B" if bold else "", size * self.scale)
        self.pdf.set_text_color(*(_FAINT if faint else _INK))

    def _known(self, words: str) -> str:
        """Return words in letters that the fonts have."""
        words = " ".join(printable(line) for line in words.splitlines())
        words = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", words)  # a figure keeps its unit
        if self._font == "Helvetica":
            shown, complete = in_latin(words)
            self.lacking |= not complete
            return shown
        if not self._letters:
            self._letters = self._letters_of_fonts()
        if not self._letters.issuperset(map(ord, words)) and "more" not in self.pdf.fonts:
            self._open_more()
        shown = "".join(char if ord(char) in self._letters else "?" for char in words)
        self.lacking |= shown != words
        return shown

    def _letters_of_fonts(self) -> set[int]:
        """Return the code points of the fonts that are open."""
        from fpdf.fonts import TTFFont

        # All have the weight of text: bold letters of DejaVu are the same, and of more none.
        opened = (self.pdf.fonts.get(name) for name in ("dejavu", "more"))
        return {code for font in opened if isinstance(font, TTFFont) for code in font.cmap}

    def _open_more(self) -> None:
        """Open a further font, if there is one, now that a letter is asked for that needs it."""
        if path := more_letters():
            self.pdf.add_font("more", "", path)
            self.pdf.set_fallback_fonts(["more"], exact_match=False)
            self._letters = self._letters_of_fonts()
