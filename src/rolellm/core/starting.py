"""Ctrl-C while the command line still imports its modules, where no ``try`` can catch it: a word, and exit code 130.

Importing this is enough; in a program that is not the command line, nothing changes.
"""

import os
import signal
import sys
from types import FrameType


def _catch_interrupt() -> None:
    """Let Ctrl-C end the process quietly, if it is the command line's own and Ctrl-C has its usual meaning."""
    program = sys.argv[0] if sys.argv else ""
    # A worker process has its parent's argv; only orig_argv tells it apart.
    module = program == "-m" and "rolellm" in sys.orig_argv
    script = program.rpartition("/")[2] == "rolellm" and program in sys.orig_argv
    if (module or script) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def restore_interrupt() -> None:
    """Give Ctrl-C its usual meaning back, once there is a ``try`` to catch it."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"stopped\n")
    # Nothing was begun, and an exception could be swallowed by a half-imported module.
    os._exit(130)


_catch_interrupt()
