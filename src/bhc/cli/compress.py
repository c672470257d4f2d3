"""``bhc compress`` and ``bhc export``: a network for a context, or for each line of a file; one in another format."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from bhc.cli.console import (
    LIMITS,
    FlagOutside,
    Float32Only,
    Force,
    Given,
    Json,
    RoundTo,
    parsed,
    refuse_existing,
    say,
    show,
    with_options,
)
from bhc.cli.subject import TaskOption, own_task
from bhc.compressor import Compressor, load
from bhc.contexts import request_options
from bhc.emission import (
    CHUNK,
    Compressed,
    DomainWarning,
    Float32,
    Limits,
    Quantisation,
    ThresholdWarning,
    VarianceBits,
    read,
)
from bhc.errors import BhcError
from bhc.files import append_json_line, make_folder, read_json_lines
from bhc.formats import Export, Packed, WeightForm, format_named, formats, identifier
from bhc.training import Progress, RunFolder, default_progress

LONGEST_LINE = 1 << 20  # characters
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
LIST = "networks.jsonl"


@dataclass(frozen=True)
class Line:
    """What one line of the file asks for."""

    number: int  # from 1
    name: str  # of the network's file
    given: dict[str, Any]


@dataclass(frozen=True)
class Tally:
    written: int
    there: int  # before this began
    failed: int


class ContextsFile:
    """One JSON object a line: conditions and limits as ``compress`` takes them, and if wanted a ``name``.

    What the command line takes as a file, such as ``domain``, is the name of one, looked for beside this one.
    """

    def __init__(self, path: Path) -> None:
        """Look through the whole file, so that a wrong line is told before any work is done."""
        self.path = path
        names: dict[str, int] = {}
        self.count = sum(1 for _ in self._raw())
        for line in self:
            first = names.setdefault(line.name, line.number)
            if first != line.number:
                raise self._wrong(line.number, f"has the name {line.name!r} of line {first}", "give each its own")
        if not names:
            raise BhcError(f"{path} has no contexts", hint='write one a line, such as {"classes": [3, 4]}')

    def __iter__(self) -> Iterator[Line]:
        width = len(str(self.count))
        for number, text in enumerate(self._raw(), 1):
            try:
                given = json.loads(text)
            except ValueError as error:
                raise self._wrong(number, f"is not JSON: {error}") from None
            if not isinstance(given, dict):
                raise self._wrong(number, f"is not an object: {text[:50]}")
            name = given.pop("name", f"{number:0{width}d}")
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise self._wrong(
                    number, f"has a name that is none for a file: {name!r}", "use letters, digits, '.', '-' and '_'"
                )
            yield Line(number, name, given)

    def arguments(self, line: Line) -> dict[str, Any] | BhcError:
        """A line as ``compress`` takes it, arrays in place of their files; or what is wrong with those."""
        given = dict(line.given)
        try:
            for option in request_options():
                if option.value_type is Path and isinstance(given.get(option.name), str):
                    given[option.name] = parsed(option, self.path.parent / given[option.name])
        except BhcError as error:
            return error
        return given

    def _raw(self) -> Iterator[str]:
        """The lines that are not empty; no more than one is held."""
        try:
            with self.path.open(encoding="utf-8") as file:
                while text := file.readline(LONGEST_LINE + 1):
                    if len(text) > LONGEST_LINE:
                        raise BhcError(f"{self.path} has a line of more than {LONGEST_LINE:,} characters")
                    if text.strip():
                        yield text
        except (OSError, UnicodeDecodeError) as error:
            raise BhcError(f"could not read {self.path}: {error}") from error

    def _wrong(self, number: int, problem: str, hint: str = "") -> BhcError:
        usual = 'a line is a JSON object, such as {"name": "kitchen", "classes": [3, 4], "max_bytes": 600}'
        return BhcError(f"line {number} of {self.path} {problem}", hint=hint or usual)


class Outputs:
    """The folder of the networks and its list, by which a second call knows what is done.

    A line of the list has what was asked for, of which run, and the report; or the error in its place. It is written
    before its network: after a stop between the two the network is missing and made again, and no network is there that
    the list does not know.
    """

    def __init__(self, folder: Path, run: Path, common: dict[str, Any]) -> None:
        make_folder(folder)
        self.folder, self.list = folder, folder / LIST
        self.run = hashlib.sha256(RunFolder(run).description.read_bytes()).hexdigest()[:16]
        self.common = {name: value for name, value in common.items() if value is not None}
        self.done = self._read()

    def path(self, line: Line) -> Path:
        return self.folder / f"{line.name}.bhc"

    def has(self, line: Line) -> bool:
        """Whether this very network was written before."""
        return self.done.get(line.name) == self._request(line) and self.path(line).exists()

    def check_free(self, lines: ContextsFile) -> None:
        """Raise if a file would be replaced that was made for something else."""
        for line in lines:
            if self.path(line).exists() and not self.has(line):
                raise BhcError(
                    f"{self.path(line)} exists already, and was made for something else",
                    hint="choose another folder, or give --force",
                )

    def put(self, line: Line, outcome: Compressed | BhcError) -> None:
        """Write a network and its line, or why there is none."""
        row: dict[str, Any] = {"name": line.name, **self._request(line)}
        if isinstance(outcome, BhcError):
            row |= {"error": outcome.problem} | ({"hint": outcome.hint} if outcome.hint else {})
        else:
            row |= {"file": self.path(line).name, "report": outcome.report.to_dict()}
        append_json_line(self.list, row)
        if isinstance(outcome, Compressed):
            outcome.save(self.path(line), overwrite=True)

    def _request(self, line: Line) -> dict[str, Any]:
        return {"run": self.run, "request": self.common | line.given}

    def _read(self) -> dict[str, dict[str, Any]]:
        """By name, what was asked for of the networks that were written; a line that was cut off is none."""
        return {
            str(row.get("name")): {"run": row.get("run"), "request": row.get("request")}
            for row in read_json_lines(self.list)
            if "file" in row
        }


def compress_lines(
    model: Compressor, lines: ContextsFile, outputs: Outputs, common: dict[str, Any], progress: Progress
) -> Tally:
    """Write the network of every line that has none yet."""
    there = sum(outputs.has(line) for line in lines)
    waiting = (line for line in lines if not outputs.has(line))
    written = failed = 0
    progress.begin("compressing", lines.count, there)
    try:
        while part := list(islice(waiting, CHUNK)):
            requests = [lines.arguments(line) for line in part]
            for line, outcome in zip(part, model.try_many(requests, **common), strict=True):
                outputs.put(line, outcome)
                if isinstance(outcome, Compressed):
                    written, terms = written + 1, {"ratio": outcome.report.pruning_ratio}
                else:
                    failed, terms = failed + 1, {}
                progress.update(there + written + failed, terms)
    finally:
        progress.end()
    return Tally(written, there, failed)


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
    task: TaskOption = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Emit the network for a context, in milliseconds. Limits are kept by the file that is written.

    With --contexts one for each line, into a folder; called again, it goes on where it was stopped.
    """
    common, own = vars(Limits(**limits)) | {"flag_outside": flag_outside, "round_to": round_to}, own_task(task)
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
    model = load(run, task=own)
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
