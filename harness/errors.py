"""How a command line that cannot work ends: with one line and no traceback."""

import sys


def refuse(flag, value, reason):
    """End with exit status 2 and one line that names the flag, its value and what would be valid.

    flag: with its dashes, or a word such as "run" for what is no flag.
    """
    print(f"{flag} {value}: {reason}", file=sys.stderr)
    sys.exit(2)
