"""``bhc compress``: one network for one context."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from bhc.cli.console import say, show
from bhc.cli.options import Force, Json, parse_classes, read_domain, refuse_existing
from bhc.compressor import load
from bhc.emission import ThresholdWarning


def compress_command(
    run: Annotated[Path, typer.Argument(help="Run folder (bhc train).")],
    classes: Annotated[str | None, typer.Option(help="Classes it will meet, such as 3,4.")] = None,
    domain: Annotated[Path | None, typer.Option(help="Sample of its inputs, a .npy file.")] = None,
    budget: Annotated[float | None, typer.Option(help="0: accuracy first, 1: smallest.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Cut here; lower is smaller. Default: chosen on validation data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the network (.bhc). Without: the report only.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Emit the network for a context, in milliseconds."""
    if out is not None:
        refuse_existing(out, force=force)
    model = load(run)
    with warnings.catch_warnings():
        # The report carries the same words.
        warnings.simplefilter("ignore", ThresholdWarning)
        small = model.compress(
            classes=parse_classes(classes), domain=read_domain(domain), budget=budget, threshold=threshold
        ).measured()
    if out is not None:
        small.save(out, overwrite=force)
    show(small.report.to_dict() if json else small.report, as_json=json)
    if json:
        for note in small.report.notes:
            say(f"note: {note}")
    if out is not None:
        say(f"wrote {out}")
