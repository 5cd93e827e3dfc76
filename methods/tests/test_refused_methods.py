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
        ({"exchange": {"kind": "local", "overlap": 20}}, "overlap=20 must be less than steps=20"),
        ({"exchange": {"kind": "local"}, "engine": {"precision": "fp16"}}, "fp16 needs all"),
        ({"exchange": {"kind": "local"}, "engine": {"zero": 1}}, "set engine.zero=0"),
        ({"exchange": {"kind": "local"}, "engine": {"sync_batch_norm": True}}, "train apart"),
        ({"exchange": {"kind": "local"}, "engine": {"schedule": "hop"}}, "exchange.kind=local"),
        (
            {"exchange": {"kind": "local"}, "recipe": {"preconditioner": {"kind": "kfac"}}},
            "train apart, and recipe.preconditioner",
        ),
        *(
            ({"exchange": {"kind": "local"}, "engine": {"parallel": {"kind": form}}},
             f"engine.parallel.kind={form} splits layers")
            for form in ("owt", "tensor3d")
        ),
        *(
            ({**change, "engine": {"elastic": {}, **change.get("engine", {})}}, text)
            for change, text in (
                ({"engine": {"zero": 2}}, "elastic needs the whole state .* set zero=0"),
                ({"engine": {"parallel": {"kind": "owt"}}}, "elastic needs the whole network"),
                ({"engine": {"schedule": "hop"}}, "elastic is for schedule=data"),
                ({"engine": {"elastic": {"min_ranks": 3}, "ranks": 2}}, "more than ranks=2"),
                ({"engine": {"elastic": {"min_ranks": 0}}}, "min_ranks"),
                (
                    {"engine": {"elastic": {"silent_s": 30}, "timeout_s": 20}},
                    "silent_s=30 is more than timeout_s=20, after which",
                ),
                ({"exchange": {"kind": "powersgd"}}, "take one of these"),
                ({"exchange": {"kind": "hierarchical"}}, r"\(dense, fused, topk, gtopk, local\)"),
                ({"recipe": {"preconditioner": {"kind": "kfac"}}}, "factors .* are shared out"),
            )
        ),
    ],
)  # fmt: skip
def test_values_that_cannot_work(change: dict[str, object], message: str) -> None:
    member = {"name": "a", "model": "test_resnet"}
    with pytest.raises(UserError, match=message) as caught:
        TrainSettings.parse({"members": [member], **change})
    assert "\n" not in str(caught.value)
