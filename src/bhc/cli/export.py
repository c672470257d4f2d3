"""``bhc export``: an emitted network in other forms."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from bhc.cli.console import say, show
from bhc.cli.options import Force, Json, refuse_existing
from bhc.emission import read
from bhc.errors import BhcError
from bhc.formats import WeightForm, c_memory


class Target(Enum):
    """Where a network can go."""

    ONNX = "onnx"
    C = "c"
    TORCH = "torch"


SUFFIXES = {Target.ONNX: ".onnx", Target.C: ".h", Target.TORCH: ".pt2"}
FORMS = {
    Target.ONNX: (WeightForm.FLOATS, WeightForm.INTEGERS),
    Target.C: (WeightForm.INTEGERS, WeightForm.BIT_PACKED, WeightForm.FLOATS),
    Target.TORCH: (WeightForm.FLOATS,),
}


def export_command(
    file: Annotated[Path, typer.Argument(help="Emitted network (.bhc).")],
    to: Annotated[Target, typer.Option(help="ONNX model, C99 header, or torch ExportedProgram.")],
    out: Annotated[Path, typer.Option(help="File to write: .onnx, .h or .pt2.")],
    weights: Annotated[
        WeightForm | None,
        typer.Option(help="How weights are held. ONNX: floats or integers; C: integers, bit-packed or floats."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="C: the prefix of <name>_predict. Default: the file's name.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Write a network as ONNX, C or torch."""
    if weights is not None and weights not in FORMS[to]:
        raise BhcError(
            f"{to.value} files do not hold weights as {weights.value}",
            hint=f"choose --weights {' or '.join(choice.value for choice in FORMS[to])}",
        )
    if out.suffix != SUFFIXES[to]:
        raise BhcError(
            f"a file for {to.value} ends in {SUFFIXES[to]}, given {out}", hint=f"--out {out.stem}{SUFFIXES[to]}"
        )
    if name is not None and to is not Target.C:
        raise BhcError("--name is for C headers", hint="leave it out")
    refuse_existing(out, force=force)
    small = read(file)
    usual = FORMS[to][0] if small.network.weights else WeightForm.FLOATS
    form = usual if weights is None else weights
    match to:
        case Target.ONNX:
            small.to_onnx(out, weights=form, overwrite=force)
        case Target.C:
            small.to_c(out, weights=form, name=name, overwrite=force)
        case Target.TORCH:
            small.to_torch(out, overwrite=force)
    facts = {"file": str(out), "to": to.value, "weights": form.value, "file_bytes": out.stat().st_size}
    text = f"file          {facts['file_bytes']:,} bytes  ({to.value}, weights as {form.value})"
    if to is Target.C:
        memory = c_memory(small.network, weights=form)
        facts |= {"flash_bytes": memory.flash, "activation_bytes": memory.ram}
        text += (
            f"\nflash         {memory.flash:,} bytes of constants\nRAM           {memory.ram:,} bytes of activations"
        )
    show(facts if json else text, as_json=json)
    say(f"wrote {out}")
