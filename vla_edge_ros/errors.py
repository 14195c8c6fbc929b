"""The error that a user can do something about."""


class UserError(Exception):
    """Something outside the program is wrong; the message is one line that says what to do about it.

    The command line prints it without a traceback and exits with 2.
    """
