"""Builds the wheel: maturin's module, and beside it the command ``slackwater``, which lands where pip puts commands."""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403: what is not said here is maturin's

ROOT = Path(__file__).resolve().parents[2]
# As `tool.maturin.data` in pyproject.toml names it.
SCRIPTS = ROOT / "target" / "slackwater.data" / "scripts"
# maturin asks for the folder as soon as it is asked for anything.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "build", "--release", "--package", "slackwater-cli"], cwd=ROOT, check=True)
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "slackwater"
    shutil.copy2(built, SCRIPTS / "slackwater")
    if strip := shutil.which("strip"):
        # What only a debugger reads is most of it.
        subprocess.run([strip, "--strip-debug", SCRIPTS / "slackwater"], check=True)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
