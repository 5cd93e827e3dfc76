import pytest


@pytest.fixture(scope="session")
def lab_here() -> None:
    """Skip where no emulated cluster can be built: not Linux, not root, no ip, no tc."""
    from skindx.core.errors import UserError
    from skindx_bench.harness.netlab import Link, NetLab

    try:
        with NetLab(1, Link(100)):
            pass
    except UserError as error:
        pytest.skip(str(error))
