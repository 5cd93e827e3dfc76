import pytest
from pydantic import ValidationError
from some_traces import trace_of

from skindx.core.cost.profile import Trace
from skindx.core.errors import UserError


def test_gradients_are_ready_one_after_the_other() -> None:
    assert trace_of([1, 1, 1], [0.5, 0.0, 0.25], forward_s=1.0).ready_s == [1.5, 1.5, 1.75]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sizes_bytes": [1]}, "the same length"),
        ({"names": ["a", "a"]}, "two tensors have the same name"),
        ({"backward_s": [0.1, -0.1]}, "greater than or equal to 0"),
        ({"backward_s": [0.1, float("inf")]}, "finite number"),
        ({"names": [], "sizes_bytes": [], "backward_s": []}, "at least 1 item"),
        ({"forward": 1.0}, "did you mean 'forward_s'"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(change: dict[str, object], words: str) -> None:
    whole = {"names": ["a", "b"], "sizes_bytes": [4, 8], "backward_s": [0.1, 0.2]}
    assert Trace.parse(whole, origin="t").sizes_bytes == (4, 8)
    with pytest.raises(UserError, match=words):
        Trace.parse({**whole, **change}, origin="t")


def test_a_trace_made_wrongly_is_a_value_error() -> None:
    with pytest.raises(ValidationError, match="the same length"):
        trace_of([1, 2], [0.1])
