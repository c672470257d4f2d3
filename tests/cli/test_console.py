import os
import subprocess
import sys


def test_what_is_shown_and_said_stands_in_a_log_in_its_order() -> None:
    """Both streams go to one pipe, which Python fills only now and then unless told otherwise."""
    program = "from bhc.cli.console import say, show; say('first'); show('then', as_json=False); say('last')"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["first", "then", "last"]
