"""The one exception for what a user can get wrong."""


class UserError(ValueError):
    """Bad input, told in one sentence: the value, what was allowed, what to do next.

    The command line prints it without a traceback and exits with code 2.
    """
