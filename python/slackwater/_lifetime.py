"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

# <sys/prctl.h>: which signal a process gets when its parent is gone.
PR_SET_PDEATHSIG = 1
# Elsewhere than on Linux a process looks for its parent this often.
LOOK_SECONDS = 1.0

# Found here, and not by a process that was just forked: it may be able to load nothing.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with(parent: int) -> None:
    """Ends this process when ``parent``, which started it, is gone: killed, too, as nobody is left to hear of a result. (On Linux that is when the
    thread that started it is gone, which therefore has to wait for it.)"""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_look_for, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        # It was gone before it could be missed.
        os._exit(1)


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
