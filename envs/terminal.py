"""What the terminal can print, and what happens once nobody reads it."""

import contextlib
import os
import select
import signal
import sys

UNREAD = 128 + signal.SIGPIPE  # the exit status that a shell reports of a program whose output nobody reads any more
lost_streams = set()  # those whose reader has gone


def plus_minus():
    """The sign of a standard error, or "+-" where the encoding of standard output lacks it, as ASCII does."""
    try:
        "±".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return "+-"
    return "±"


def say(text, file=None):
    """Print a line at once to standard output, or to `file`.

    Returns whether it could be printed. Where the reader has gone, as `| head` does, this and all later lines are lost.
    """
    stream = file or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        discard(stream)
        lost_streams.add(stream)
    return stream not in lost_streams


def discard(stream):
    """Let what is printed to `stream` go nowhere, also what Python flushes when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_unread(stream):
    """Whether `stream` is a pipe whose other end has been closed. None stands for no stream, as after `>&-`."""
    if stream is None:
        return False
    poll = select.poll()
    poll.register(stream, 0)  # errors are reported without being asked for
    return any(event & select.POLLERR for _, event in poll.poll(0))


@contextlib.contextmanager
def needs_output():
    """End quietly with the exit status UNREAD where nobody reads standard output any more, as after `| head`.

    Characters that standard output lacks, such as those of a folder's name in ASCII, are printed as escapes.
    """
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread(sys.stdout):  # then it was another pipe, such as one to a process of an environment
            raise
        discard(sys.stdout)
        sys.exit(UNREAD)
