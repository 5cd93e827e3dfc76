"""Images with boxes as hypothesis draws them: odd sizes, borders, fractions, any script."""

from hypothesis import strategies as st

from skindx.data.box import Box, BoxedImage, base_name
from skindx.data.boxes.box_file import BoxFile

# Without control characters and surrogates: XML has no place for them.
words = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co"]), min_size=1, max_size=12
).map(str.strip)
labels = words.filter(bool)
shares = st.just(0.0) | st.just(1.0) | st.floats(0, 1)
scores = st.none() | st.floats(0, 1)


@st.composite
def images(draw: st.DrawFn) -> BoxedImage:
    width, height = draw(st.integers(1, 60_000)), draw(st.integers(1, 60_000))

    def box() -> Box:
        (x1, x2), (y1, y2) = (
            sorted(draw(st.lists(shares, min_size=2, max_size=2, unique=True))) for _ in range(2)
        )
        return Box(
            x1 * width,
            y1 * height,
            x2 * width,
            y2 * height,
            draw(labels),
            draw(labels),
            draw(scores),
            "2026-01-02T03:04:05+00:00",
        )

    boxes = [box() for _ in range(draw(st.integers(0, 3)))]
    # Narrower than a format's last decimal is no box any more.
    wide = [b for b in boxes if b.x2 - b.x1 > 0.01 and b.y2 - b.y1 > 0.01]
    return BoxedImage(width, height, tuple(wide))


files = st.lists(images(), min_size=1, max_size=3).map(
    lambda drawn: {f"ünï {n}.png": image for n, image in enumerate(drawn)}
)


def by_name(file: BoxFile) -> dict[str, BoxedImage]:
    """Return the images that a reader gave by their file names; no two share one."""
    named = {base_name(path): image for path, image in file.images.items()}
    assert len(named) == len(file.entries)
    return named


def assert_same(file: BoxFile, written: dict[str, BoxedImage], facts: tuple[str, ...]) -> None:
    """Assert that images came back: corners within 0.01 px, `facts` of each box exactly."""
    read = by_name(file)
    assert read.keys() == written.keys()
    assert not file.all_findings()
    for name, before in written.items():
        after = read[name]
        assert (after.width, after.height, after.refused) == (before.width, before.height, 0)
        assert len(after.boxes) == len(before.boxes)
        for a, b in zip(after.boxes, before.boxes, strict=True):
            corners = [(a.x1, b.x1), (a.y1, b.y1), (a.x2, b.x2), (a.y2, b.y2)]
            assert all(abs(x - y) <= 0.01 for x, y in corners), (a, b)
            assert all(getattr(a, fact) == getattr(b, fact) for fact in facts), (a, b)
