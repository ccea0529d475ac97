"""What the terminal can print."""

import sys


def plus_minus():
    """The sign of a standard error, or "+-" where the encoding of standard output lacks it, as ASCII does."""
    try:
        "±".encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "+-"
    return "±"
