"""`skindx bench` as `skindx --help` lists it; the verb itself comes from skindx-bench."""


def bench() -> None:
    """Measure skindx and comparable tools; needs the distribution skindx-bench."""
    raise AssertionError("the verb of skindx-bench takes the place of this one")
