"""What tests share: a run of their own, ended whatever they do, and a limit that tells done from hung."""

import faulthandler
import os

import pytest

import slackwater

# No test takes a tenth of this.
HUNG_SECONDS = 240


@pytest.fixture(autouse=True)
def ends():
    """A test that hangs says where, and ends."""
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
    for name in ("SLACKWATER_MEET", "SLACKWATER_PLACE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    yield
    faulthandler.cancel_dump_traceback_later()
    slackwater.shutdown()


@pytest.fixture
def run():
    """A whole run in this process."""
    with slackwater.init() as run:
        yield run
