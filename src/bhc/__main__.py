"""The program ``bhc``, also as ``python -m bhc``."""

import os
import sys

from bhc.errors import BhcError

# What the OpenMP runtime is told about threads that wait. By itself it lets them spin, and two programs that share a
# machine's cores then take several times as long as they should.
WRONG_USE = 2
WAITING = {"OMP_WAIT_POLICY": "passive"}
SAID_OTHERWISE = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def main() -> None:
    """Set the process up, then run the command line; torch reads the environment when it is loaded."""
    if not any(name in os.environ for name in SAID_OTHERWISE):
        os.environ.update(WAITING)
    from bhc.plugins import import_plugins, named_in

    try:  # before there are commands, whose help lists what is registered
        import_plugins(named_in(sys.argv[1:]))
    except BhcError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(WRONG_USE)
    from bhc.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
