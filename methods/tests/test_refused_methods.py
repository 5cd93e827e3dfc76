"""Settings of methods that cannot work are refused with a sentence of one line."""

import pytest

from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exchange": {"kind": "local", "density": 0}}, "density.*greater than 0"),
        ({"exchange": {"kind": "local", "bits": 3}}, "bits.*2, 4, 8 or 32"),
        ({"exchange": {"kind": "local", "steps": 0}}, "exchange.steps"),
        ({"exchange": {"kind": "local", "overlap": 20}}, "overlap=20 must be less than"),
        ({"exchange": {"kind": "local"}, "engine": {"precision": "fp16"}}, "fp16 needs all"),
        ({"exchange": {"kind": "local"}, "engine": {"zero": 1}}, "set engine.zero=0"),
        ({"exchange": {"kind": "local"}, "engine": {"sync_batch_norm": True}}, "train apart"),
        ({"exchange": {"kind": "local"}, "engine": {"schedule": "hop"}}, "exchange.kind=local"),
        (
            {"exchange": {"kind": "local"}, "recipe": {"preconditioner": {"kind": "kfac"}}},
            "does not exchange in each step, but recipe.preconditioner",
        ),
        *(
            ({"exchange": {"kind": "local"}, "engine": {"parallel": {"kind": form}}},
             f"engine.parallel.kind={form} splits layers")
            for form in ("owt", "tensor3d")
        ),
        *(
            ({**change, "engine": {"elastic": {}, **change.get("engine", {})}}, text)
            for change, text in (
                ({"engine": {"zero": 2}}, "engine.elastic needs the whole state .* set"),
                ({"engine": {"parallel": {"kind": "owt"}}}, "elastic needs the whole network"),
                ({"engine": {"schedule": "hop"}}, r"engine\.elastic works only with"),
                ({"engine": {"elastic": {"min_ranks": 3}, "ranks": 2}}, r"more than"),
                ({"engine": {"elastic": {"min_ranks": 0}}}, "min_ranks"),
                (
                    {"engine": {"elastic": {"silent_s": 30}, "timeout_s": 20}},
                    r"elastic\.silent_s=30 must not be more than engine\.timeout_s=20; lower",
                ),
                ({"exchange": {"kind": "powersgd"}}, "set exchange.kind to one of dense"),
                ({"exchange": {"kind": "hierarchical"}}, "one of dense, fused, topk, gtopk, local"),
                ({"recipe": {"preconditioner": {"kind": "kfac"}}}, r"not work with"),
            )
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_work(change: dict[str, object], message: str) -> None:
    member = {"name": "a", "model": "test_resnet"}
    with pytest.raises(UserError, match=message) as caught:
        TrainSettings.parse({"members": [member], **change})
    assert "\n" not in str(caught.value)
