import threading
import warnings

from skindx.imaging.decode import ignore_warnings


def test_the_last_thread_out_restores_the_filters() -> None:
    before = list(warnings.filters)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first() -> None:
        with ignore_warnings():
            first_in.set()
            second_in.wait(10)
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_in.wait(10)
    with ignore_warnings():
        second_in.set()
        first_out.wait(10)
        # Would raise: pytest turns warnings into errors here.
        warnings.warn("still inside", stacklevel=1)
    thread.join(10)
    assert list(warnings.filters) == before
