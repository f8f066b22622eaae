"""The one error type for what a person can put right."""


class UserError(Exception):
    """Something a person asked for cannot be done.

    The message is one paragraph that names the thing, its value, what is allowed, and
    the way out. Programs print it after ``ooodist: error:`` without a traceback and end
    with exit code 2.
    """
