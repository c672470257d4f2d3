"""``bhc compress``: one network for one context, or one for each line of a file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bhc.cli.console import say, show
from bhc.cli.many import LIST, ContextsFile, Outputs, compress_lines
from bhc.cli.options import LIMITS, FlagOutside, Float32Only, Force, Given, Json, RoundTo, refuse_existing, with_options
from bhc.compressor import load
from bhc.contexts import request_options
from bhc.emission import DomainWarning, Float32, Limits, Quantisation, ThresholdWarning, VarianceBits
from bhc.errors import BhcError
from bhc.formats import Packed, formats
from bhc.training import default_progress


@with_options("conditions", request_options())
@with_options("limits", LIMITS)
def compress_command(
    run: Annotated[Path, typer.Argument(help="Run folder (bhc train).")],
    conditions: Given,
    limits: Given,
    flag_outside: FlagOutside = None,
    round_to: RoundTo = None,
    float32: Float32Only = False,
    contexts: Annotated[
        Path | None,
        typer.Option(help='Many contexts: a file with a JSON object a line, as {"classes": [3, 4], "max_bytes": 600}.'),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the network (.bhc), with --contexts a folder. Without: the report only."),
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Emit the network for a context, in milliseconds. Limits are kept by the file that is written.

    With --contexts one for each line, into a folder; called again, it goes on where it was stopped.
    """
    common = vars(Limits(**limits)) | {"flag_outside": flag_outside, "round_to": round_to}
    if contexts is not None:
        unwanted = [option.flag for option in request_options() if conditions[option.name] is not None]
        _compress_each(run, contexts, out, common, unwanted=unwanted, float32=float32, force=force, json=json)
        return
    if out is not None:
        if out.suffix in {each.suffix for each in formats() if each.name != Packed.name}:
            raise BhcError(
                f"compress writes .bhc files, given {out}", hint="write one, then: bhc export small.bhc --to ..."
            )
        refuse_existing(out, force=force)
    model = load(run)
    with _without_warnings():
        small = model.compress(**conditions, **common, quantisation=_quantisation(float32))
    if out is not None:
        small.save(out, overwrite=force)
    show(small.report.to_dict() if json else small.report, as_json=json)
    if json:
        for note in small.report.notes:
            say(f"note: {note}")
    if out is not None:
        say(f"wrote {out}")


def _compress_each(
    run: Path,
    contexts: Path,
    out: Path | None,
    common: dict[str, Any],
    *,
    unwanted: list[str],
    float32: bool,
    force: bool,
    json: bool,
) -> None:
    if unwanted:
        raise BhcError(
            f"{', '.join(unwanted)} and --contexts exclude each other", hint="write the conditions into the file"
        )
    if out is None or out.is_file():
        raise BhcError("--contexts needs a folder for its networks", hint="give --out FOLDER")
    lines, model = ContextsFile(contexts), load(run)
    outputs = Outputs(out, run, common | {"float32": float32 or None})
    if not force:
        outputs.check_free(lines)
    with _without_warnings():
        common = common | {"quantisation": _quantisation(float32)}
        tally = compress_lines(model, lines, outputs, common, default_progress())
    counts = [f"{tally.written:,} written", *([f"{tally.there:,} there before"] if tally.there else [])]
    say(f"{out}: {', '.join(counts)}, listed in {LIST}")
    if json:
        show({"out": str(out), **vars(tally)}, as_json=True)
    if tally.failed:
        raise BhcError(
            f"{tally.failed:,} of {lines.count:,} contexts got no network", hint=f"{out / LIST} says why for each"
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """The report carries the same words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThresholdWarning)
        warnings.simplefilter("ignore", DomainWarning)
        yield


def _quantisation(float32: bool) -> Quantisation:
    return Float32() if float32 else VarianceBits()
