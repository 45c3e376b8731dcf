"""What tests share: a run of their own, ended whatever they do, and a limit that tells done from hung."""

import faulthandler
import os
import signal

import pytest

import slackwater

# No test takes a tenth of this.
HUNG_SECONDS = 240
# How long a test that hangs gets to end its processes.
GRACE_SECONDS = 30

# A shell has its background jobs ignore Ctrl-C, and so would the tests of it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def hung(*_):
    faulthandler.dump_traceback()
    raise TimeoutError(f"the test hung for {HUNG_SECONDS} s")


@pytest.fixture(autouse=True)
def ends():
    """A test that hangs says where, and ends with all that it started."""
    signal.signal(signal.SIGALRM, hung)
    signal.alarm(HUNG_SECONDS)
    faulthandler.dump_traceback_later(HUNG_SECONDS + GRACE_SECONDS, exit=True)
    for name in ("SLACKWATER_COORDINATOR", "SLACKWATER_PLACE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    yield
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()
    slackwater.shutdown()


@pytest.fixture
def run():
    """A whole run in this process."""
    with slackwater.init() as run:
        yield run
