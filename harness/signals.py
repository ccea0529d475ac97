"""What stops a run: a signal or a closed output after its iteration, with a checkpoint; a second signal at once."""

import contextlib
import os
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # USR1: Slurm's warning before the time limit


class StopSignals:
    """Catches SIGNALS, unless they are ignored (nohup ignores SIGHUP). received: the number of the first, or 0."""

    def __init__(self, quiet):
        """quiet: whether the first signal is not answered, as in all processes but rank 0."""
        self.quiet = quiet
        self.received = 0
        self.handlers = {}
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self.handlers[number] = signal.signal(number, self.stop)

    def stop(self, number, frame):
        if self.received and number != signal.SIGHUP:  # a closing terminal sends that twice: the kernel does, and bash
            sys.exit(128 + number)
        self.received = self.received or number
        if not self.quiet and number != signal.SIGHUP:  # a hangup means that the terminal is gone
            with contextlib.suppress(OSError):  # in `2>&1 | tee log` Ctrl-C ends tee, too
                # print could be interrupted halfway here, and must not be called again then
                os.write(2, b"stopping after this iteration, with a checkpoint (Ctrl-C again: at once, without)\n")

    def output_closed(self):
        """Stop as at a signal, since nobody reads what the run prints any more, as after `| head`."""
        self.received = self.received or signal.SIGPIPE

    def close(self):
        """Put back the handlers of before."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
