from skindx_bench.subjects import run_bench


def test_checkpoints_behind_the_steps_and_waited_for() -> None:
    result = run_bench("checkpoint-stall", smallest=True)
    shares = {f"checkpoint_{what}_share" for what in ("stall", "cost")}
    assert set(result.figures) == shares | {f"{share}_waited_for" for share in shares}
    assert all(result.figures[name].value > 0 for name in result.figures if "cost" in name)
