"""PEP 517 build backend: maturin's, with the command ``slackwater`` added to the wheel as a
script."""

import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403: all other hooks are maturin's

ROOT = Path(__file__).resolve().parents[2]
# The scripts folder in `tool.maturin.data` of pyproject.toml.
SCRIPTS = ROOT / "target" / "slackwater.data" / "scripts"
# maturin fails in every hook if the folder is missing.
SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the command, puts it into the scripts folder, and has maturin build the wheel."""
    cargo = os.environ.get("CARGO", "cargo")
    subprocess.run([cargo, "build", "--release", "--package", "slackwater-cli"], cwd=ROOT, check=True)
    built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "slackwater"
    shutil.copy2(built, SCRIPTS / "slackwater")
    if strip := shutil.which("strip"):
        # Debug symbols are most of the file.
        subprocess.run([strip, "--strip-debug", SCRIPTS / "slackwater"], check=True)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
