"""``bhc export``: an emitted network in other formats."""

from pathlib import Path
from typing import Annotated

import typer

from bhc.cli.console import say, show
from bhc.cli.options import Force, Json, refuse_existing
from bhc.emission import read
from bhc.errors import BhcError
from bhc.formats import Export, WeightForm, format_named, formats, identifier


def export_command(
    file: Annotated[Path, typer.Argument(help="Emitted network (.bhc).")],
    to: Annotated[
        str, typer.Option(metavar=f"[{'|'.join(each.name for each in formats())}]", help="What to write it as.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: it ends as the format's files do, such as .onnx or .h.")],
    weights: Annotated[
        WeightForm | None,
        typer.Option(help="How weights are held. ONNX: floats or integers; C: integers, bit-packed or floats."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Code: the prefix of <name>_predict. Default: the file's name.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a network as ONNX, C, torch, or another registered format."""
    chosen = format_named(to)
    if out.suffix != chosen.suffix:
        raise BhcError(
            f"a file for {chosen.name} ends in {chosen.suffix}, given {out}", hint=f"--out {out.stem}{chosen.suffix}"
        )
    if name is not None and not chosen.is_code:
        raise BhcError("--name is for formats that are code, such as C", hint="leave it out")
    refuse_existing(out, force=force)
    small = read(file)
    form = chosen.weights_for(small.network, weights)
    name = name or identifier(out.stem)
    small.export(out, chosen.name, weights=form, name=name, overwrite=force)
    figures = chosen.figures(small.network, Export(form, name))
    size = out.stat().st_size
    facts = {"file": str(out), "to": chosen.name, "weights": form.value, "file_bytes": size}
    lines = [f"{'file':14}{size:,} bytes  ({chosen.name}, weights as {form.value})"]
    lines += [f"{each.title:14}{each.value:,} {each.unit}" for each in figures]
    show(facts | {each.key: each.value for each in figures} if json else "\n".join(lines), as_json=json)
    say(f"wrote {out}")
