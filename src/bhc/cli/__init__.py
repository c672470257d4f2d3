"""The command line: one function a command."""

from collections.abc import Callable
from functools import wraps
from importlib.metadata import version
from typing import Annotated

import typer

from bhc.cli.compress import compress_command, export_command
from bhc.cli.console import INTERRUPTED, WRONG_USE, say, say_error, show
from bhc.cli.demo import demo_command, pretrain_command
from bhc.cli.evaluate import evaluate_command
from bhc.cli.inspect import inspect_command
from bhc.cli.serve import pull_command, serve_command
from bhc.cli.train import train_command
from bhc.errors import BhcError
from bhc.plugins import import_plugins
from bhc.training import configure_process

app = typer.Typer(
    help="One trained network in, many small ones out: instant compression for the context you ask for.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo_command,
    "pretrain": pretrain_command,
    "train": train_command,
    "compress": compress_command,
    "export": export_command,
    "evaluate": evaluate_command,
    "inspect": inspect_command,
    "serve": serve_command,
    "pull": pull_command,
}


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with errors turned into a line, a hint and an exit status."""

    @wraps(command)
    def call(*words: object, **options: object) -> None:
        try:
            command(*words, **options)
        except BhcError as error:
            say_error(error)
            raise typer.Exit(WRONG_USE) from error
        except KeyboardInterrupt:
            going_on = "; --resume goes on from the last checkpoint" if command is train_command else ""
            say(f"interrupted{going_on}")
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            say(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
            raise typer.Exit(WRONG_USE) from error

    return call


for name, command in COMMANDS.items():
    app.command(name)(guarded(command))


def _show_version(wanted: bool) -> None:
    if wanted:
        show(f"bhc {version('bhc')}", as_json=False)
        raise typer.Exit


def _import(names: list[str]) -> list[str]:
    try:
        import_plugins(names)
    except BhcError as error:
        say_error(error)
        raise typer.Exit(WRONG_USE) from error
    return names


@app.callback()
def options(
    imports: Annotated[
        list[str],
        typer.Option(
            "--import",
            callback=_import,
            is_eager=True,
            metavar="FILE_OR_MODULE",
            help="Import it first: it registers layers, formats or contexts of your own. Also: $BHC_IMPORT.",
        ),
    ] = [],  # noqa: B006 - typer copies it
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    return None


def main() -> None:
    """Entry point: 0 done, 2 wrong use or bad input, 1 our fault, 130 interrupted."""
    configure_process()
    app()
