"""Traces for tests: made by hand, or drawn."""

from collections.abc import Sequence

from hypothesis import strategies as st

from skindx.core.cost.collectives import Cost
from skindx.core.cost.profile import Trace


def trace_of(
    sizes_bytes: Sequence[int],
    backward_s: Sequence[float],
    forward_s: float = 0.0,
    update_s: float = 0.0,
) -> Trace:
    return Trace(
        names=tuple(f"t{number}" for number in range(len(sizes_bytes))),
        sizes_bytes=tuple(sizes_bytes),
        backward_s=tuple(backward_s),
        forward_s=forward_s,
        update_s=update_s,
    )


@st.composite
def traces(draw: st.DrawFn, most: int = 12) -> Trace:
    """Tensors and times across several orders of magnitude, zeros among them."""
    count = draw(st.integers(1, most))
    sizes = st.one_of(st.integers(0, 100), st.integers(0, 10**5), st.integers(0, 10**7))
    seconds = st.one_of(st.just(0.0), st.floats(0, 1e-3), st.floats(0, 0.1))
    return trace_of(
        draw(st.lists(sizes, min_size=count, max_size=count)),
        draw(st.lists(seconds, min_size=count, max_size=count)),
        draw(seconds),
        draw(seconds),
    )


costs = st.builds(
    Cost,
    st.one_of(st.just(0.0), st.floats(0, 1e-3), st.floats(0, 0.1)),
    st.one_of(st.just(0.0), st.floats(0, 1e-9), st.floats(0, 1e-7)),
)
