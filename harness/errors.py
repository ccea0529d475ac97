"""How a command line that cannot work ends: with one line and no traceback."""

import contextlib
import os
import sys


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid.

    flag: with its dashes, or a word such as "run" for what is no flag.
    """
    print(f"{flag} {value}: {reason}", file=sys.stderr)
    sys.exit(2)


@contextlib.contextmanager
def needs_output(may_close=False):
    """End with exit status 2 and one line where standard output has been closed, as `| head` does.

    may_close: whether the reader may stop early, as of --help. Then nothing is said, and the program goes on.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more when it ends
        if not may_close:
            print("standard output has been closed", file=sys.stderr)
            sys.exit(2)
