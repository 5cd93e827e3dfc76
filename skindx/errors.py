"""The two exceptions that the command line reports in one sentence."""


class UserError(ValueError):
    """Bad input, reported in one sentence: the value, what was allowed, what to do next.

    The command line prints it without a traceback and exits with code 2.
    """


class JobError(RuntimeError):
    """A process that was started for the user failed; its own words stand above this sentence.

    The command line prints it without a second traceback and exits with code 1.
    """
