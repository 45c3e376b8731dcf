"""Fixtures of all tests: a time limit, and a run in this process that always ends."""

import faulthandler
import os
import signal

import pytest

import slackwater

# A test that takes longer hangs. None takes a tenth of it.
HUNG_SECONDS = 240
# How long a test that hangs may take to end its processes.
GRACE_SECONDS = 30

# Background jobs of a shell ignore SIGINT. The tests of Ctrl-C need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)


def hung(*_):
    """Handles SIGALRM: shows all threads' stacks and fails the test."""
    faulthandler.dump_traceback()
    raise TimeoutError(f"the test hung for {HUNG_SECONDS} s")


@pytest.fixture(autouse=True)
def ends():
    """Ends a test that hangs, shows where it hung, and shuts down its run."""
    signal.signal(signal.SIGALRM, hung)
    signal.alarm(HUNG_SECONDS)
    faulthandler.dump_traceback_later(HUNG_SECONDS + GRACE_SECONDS, exit=True)
    for name in ("SLACKWATER_COORDINATOR", "SLACKWATER_PLACE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    # Most tests are about something else than who may join a run.
    os.environ.pop("SLACKWATER_TOKEN_FILE", None)
    os.environ["SLACKWATER_INSECURE"] = "1"
    yield
    signal.alarm(0)
    faulthandler.cancel_dump_traceback_later()
    slackwater.shutdown()


@pytest.fixture
def run():
    """A whole run in this process, ended with the test."""
    with slackwater.init() as run:
        yield run
