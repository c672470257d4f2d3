"""What is in an emitted file: layer by layer, and what each byte is for."""

from pathlib import Path
from typing import Any

from bhc.cli.console import table
from bhc.emission import Compressed
from bhc.formats import NetworkFile, Part, StoredLayer

PRIOR, WEIGHTS = "prior of the weights", "weights"


def file_facts(small: Compressed, file: NetworkFile, path: Path) -> dict[str, Any]:
    """The report, the layers and the parts as plain data."""
    return {
        "file": str(path),
        "version": file.version,
        **small.report.to_dict(),
        "stored_layers": [_layer_facts(layer) for layer in file.network.layers],
        "parts": [vars(part) for part in file.parts],
        "weight_stream": weight_stream(file),
    }


def file_text(small: Compressed, file: NetworkFile, path: Path) -> str:
    """The same for reading."""
    header = ["layer", "weights", "bits", "step", "codes", "bytes", "entropy"]
    coded = {part.layer: part.bytes for part in file.parts if part.name == WEIGHTS}
    layers = table(header, [_layer_row(layer, coded) for layer in file.network.layers])
    sections = [f"path          {path}  (version {file.version})", str(small.report), "", layers]
    if file.parts:
        total = sum(part.bytes for part in file.parts)
        rows = [
            [part.name, part.layer or "", f"{part.bytes:.1f}", f"{100 * part.bytes / total:.0f} %"]
            for part in file.parts
        ]
        rows.append(["all", "", f"{total:,.0f}", ""])
        sections += ["", table(["part", "of layer", "bytes", "share"], rows), "", _stream_text(weight_stream(file))]
    return "\n".join(sections)


def weight_stream(file: NetworkFile) -> dict[str, float]:
    """The coded weights with their priors against the per-layer zero-order entropy of the codes."""
    return {
        "coded_bytes": _sum(file.parts, WEIGHTS),
        "prior_bytes": _sum(file.parts, PRIOR),
        "entropy_bytes": sum(codes.entropy_bytes for codes in file.network.weights.values()),
    }


def _stream_text(stream: dict[str, float]) -> str:
    return (
        f"coded weights {stream['coded_bytes']:.0f} bytes and {stream['prior_bytes']:.0f} for their priors; the"
        f" zero-order entropy of the codes is {stream['entropy_bytes']:.1f} bytes"
    )


def _sum(parts: tuple[Part, ...], name: str) -> float:
    return sum(part.bytes for part in parts if part.name == name)


def _layer_facts(layer: StoredLayer) -> dict[str, Any]:
    codes = layer.weight
    return {
        "name": layer.name,
        "shape": list(layer.module.weight.shape),
        "bits": layer.bits,
        "step": None if codes is None else codes.step,
        "lowest": None if codes is None else int(codes.codes.min()),
        "highest": None if codes is None else int(codes.codes.max()),
        "entropy_bytes": None if codes is None else codes.entropy_bytes,
    }


def _layer_row(layer: StoredLayer, coded: dict[str | None, float]) -> list[str]:
    shape = " x ".join(map(str, layer.module.weight.shape))
    codes = layer.weight
    if codes is None:
        return [layer.name, shape, "32", "floats", "", f"{4 * layer.num_weights:,}", ""]
    return [
        layer.name,
        shape,
        str(layer.bits),
        f"{codes.step:.3g}",
        f"{codes.codes.min()} to {codes.codes.max()}",
        f"{coded.get(layer.name, 0.0):.1f}",
        f"{codes.entropy_bytes:.1f}",
    ]
