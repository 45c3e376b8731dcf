"""Child processes that end with their parent, even if the parent is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

# From <sys/prctl.h>: sets the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
# On other systems than Linux a process checks for its parent this often.
LOOK_SECONDS = 1.0

# Loaded here, because a process that was just forked may be unable to load libraries.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with(parent: int) -> None:
    """Kills this process when its parent, the process ``parent``, ends. On Linux that happens when
    the parent's thread that started this process ends, so that thread must wait for it."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_look_for, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        # The parent ended before the signal was set.
        os._exit(1)


def _look_for(parent: int) -> None:
    """Ends this process when its parent has changed."""
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
