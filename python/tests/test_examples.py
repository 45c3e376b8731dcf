"""The examples, in a short form: that they run as they are started, and learn. How well they end is said in their own words."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"


def said(example, folder, words, *more, workers=2):
    """The number that an example says in the end, after ``words``."""
    if not (DATA / folder).is_dir():
        pytest.skip(f"no data in {DATA / folder}")
    command = [sys.executable, "-m", "slackwater.run", "--workers", str(workers), "--servers", "1"]
    command += [str(ROOT / "examples" / f"{example}.py"), "--data", str(DATA / folder), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(re.search(words, done.stdout).group(1))


@pytest.mark.parametrize("slack", ["0", "3"])
def test_images_are_named_after_one_epoch(slack):
    # 90% and more after five.
    assert said("fashion_mnist", "fashion-mnist", r"([\d.]+)% of the test", "--slack", slack, "--epochs", "1") > 84


@pytest.mark.parametrize("slack", ["0", "3"])
def test_characters_are_foretold_after_some_steps(slack):
    # Which letter is how frequent tells 3.3 nats.
    assert said("shakespeare", "tinyshakespeare", r"([\d.]+) nats", "--slack", slack, "--steps", "150") < 2.7


@pytest.mark.parametrize("slack", ["0", "3"])
def test_ratings_are_foretold(slack):
    assert said("movielens", "ml-100k", r"RMSE ([\d.]+)", "--slack", slack) <= 0.94
