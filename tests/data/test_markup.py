"""All addresses of an image in modern HTML, the largest first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsel import Selector

from skindx.data.sources.markup import SrcsetEntry, offered_images, parse_srcset

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.jpg", [("a.jpg", None, 1.0)]),
        ("a.jpg, b.jpg 2x", [("a.jpg", None, 1.0), ("b.jpg", None, 2.0)]),
        ("s.jpg 300w,m.jpg 1024w , l.jpg 2048w",
         [("s.jpg", 300), ("m.jpg", 1024), ("l.jpg", 2048)]),
        # A comma inside an address separates nothing; at its end it does.
        ("w_300,h_200/a.jpg 1x, w_600,h_400/a.jpg 2x", [
            ("w_300,h_200/a.jpg", None, 1.0), ("w_600,h_400/a.jpg", None, 2.0)]),
        ("a.jpg,, b.jpg", [("a.jpg", None, 1.0), ("b.jpg", None, 1.0)]),
        (f"{PIXEL} 1x, b.jpg 1.5x", [(PIXEL, None, 1.0), ("b.jpg", None, 1.5)]),
        ("a.jpg 100w 50h, b.jpg 50h, c.jpg 5w 2x, d.jpg -1w, e.jpg 0w, f.jpg 1q", [("a.jpg", 100)]),
        ("a.jpg (1, 2) 3w, b.jpg 2x", [("b.jpg", None, 2.0)]),
        ("a.jpg 1e3x", [("a.jpg", None, 1000.0)]),
        (" ,\n, ", []),
        ("", []),
    ],
)  # fmt: skip
def test_srcset_is_read_as_the_standard_says(text: str, expected: list[tuple]) -> None:  # type: ignore[type-arg]
    assert parse_srcset(text) == [SrcsetEntry(*entry) for entry in expected]


@given(st.text(alphabet="a,.x2w(1 \n\t-h/:;e+", max_size=60))
def test_no_srcset_breaks_the_parser(text: str) -> None:
    for entry in parse_srcset(text):
        assert entry.address
        assert not entry.address.endswith(",")
        assert (entry.width_px is None) != (entry.density is None)


def offered(inside: str, selector: str = "img") -> list[list[str]]:
    figure = Selector(f"<html><body><figure>{inside}</figure></body></html>").css("figure")[0]
    return [[c.address for c in image.candidates] for image in offered_images(figure, selector)]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ('<img src="a.jpg">', ["a.jpg"]),
        (f'<img src="{PIXEL}" data-src="a.jpg">', ["a.jpg"]),
        ('<img src="/blank.png" data-original="a.jpg">', ["a.jpg", "/blank.png"]),
        ('<img src="s.jpg" srcset="s.jpg 150w, l.jpg 1200w, m.jpg 600w" sizes="50vw">',
         ["l.jpg", "m.jpg", "s.jpg"]),
        ('<img src="s.jpg" srcset="m.jpg 2x, l.jpg 3x">', ["l.jpg", "m.jpg", "s.jpg"]),
        # The width attribute keeps the layout; it says nothing of what `src` holds.
        ('<img src="s.jpg" width="3000" srcset="m.jpg 800w">', ["m.jpg", "s.jpg"]),
        (f'<img src="{PIXEL}" data-srcset="s.jpg 1x, l.jpg 2x" data-src="s.jpg">',
         ["l.jpg", "s.jpg"]),
        (f'<img src="{PIXEL}" class="lazy" data-src="a.jpg"><noscript><img src="a.jpg"></noscript>',
         ["a.jpg"]),
        (f'<img src="{PIXEL}" class="lazy"><noscript><img src="a.jpg"></noscript>', ["a.jpg"]),
        (f'<noscript><img src="a.jpg"></noscript><img src="{PIXEL}" data-src="a.jpg">', ["a.jpg"]),
        ('<a href="/full/a.JPG?v=2"><img src="t.jpg"></a>', ["/full/a.JPG?v=2", "t.jpg"]),
        (f'<a href="l.jpg"><img src="{PIXEL}" data-src="m.jpg"><noscript><img src="m.jpg">'
         "</noscript></a>", ["l.jpg", "m.jpg"]),
        ('<a href="/page/7"><img src="t.jpg"></a>', ["t.jpg"]),
        ('<a href="/wiki/File:A.jpg"><img src="t.jpg"></a>', ["t.jpg"]),
        ('<a href="/zoom.gif"><img src="t.jpg"></a>', ["t.jpg"]),
        ('<img src="t.jpg" data-zoom-image="l.jpg">', ["l.jpg", "t.jpg"]),
        ('<img src="t.jpg" data-large="true" data-zoom="3">', ["t.jpg"]),
        ('<picture><source type="image/avif" srcset="l.avif 2000w">'
         '<source type="image/webp" srcset="m.webp 900w, l.webp 1800w">'
         '<img src="s.jpg" srcset="s.jpg 300w, m.jpg 900w"></picture>',
         ["l.webp", "m.webp", "m.jpg", "s.jpg"]),
        ('<a href="l.jpg"><picture><source srcset="m.webp"><img src="s.jpg"></picture></a>',
         ["l.jpg", "m.webp", "s.jpg"]),
        ('<img src="film.gif">', ["film.gif"]),
        (f'<img src="{PIXEL}">', [PIXEL]),
        ("<img>", [""]),
    ],
)  # fmt: skip
def test_one_image_has_all_its_addresses(inside: str, expected: list[str]) -> None:
    assert offered(inside) == [expected]


def test_several_images_of_a_figure_stay_apart() -> None:
    two = '<img src="a.jpg"><img src="b.jpg">'
    assert offered(two) == [["a.jpg"], ["b.jpg"]]
    assert offered(f'<a href="/page">{two}</a>') == [["a.jpg"], ["b.jpg"]]
    assert offered(f"<div class=pic>{two}</div>", ".pic") == [["a.jpg"], ["b.jpg"]]
    plain = '<img src="a.jpg"><noscript><img src="b.jpg"></noscript>'
    assert offered(plain) == [["a.jpg"], ["b.jpg"]]
    linked = '<a href="A.jpg"><img src="a.jpg"></a><a href="B.jpg"><img src="b.jpg"></a>'
    assert offered(linked) == [["A.jpg", "a.jpg"], ["B.jpg", "b.jpg"]]


def test_a_link_that_the_selector_names_needs_no_suffix() -> None:
    inside = '<a class="full" href="/image?id=3"><img src="t.jpg"></a><img src="badge.png">'
    assert offered(inside, "a.full") == [["/image?id=3", "t.jpg"]]
    assert offered(inside, "a.full, a.full img") == [["/image?id=3", "t.jpg"]]
    assert offered('<a class="full" href="a.jpg">x</a>', "a.full") == [["a.jpg"]]


def test_the_alternative_text_is_the_images_own() -> None:
    page = Selector(
        '<figure><a href="l.jpg"><img alt=" Man, 54, left arm " src="s.jpg"></a></figure>'
    )
    (image,) = offered_images(page.css("figure")[0], "img")
    assert image.alternative == "Man, 54, left arm"
