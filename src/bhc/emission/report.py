"""What came out, in numbers and in words."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Report:
    """One emitted network. Errors are validation errors in percent; None where no data was at hand."""

    context: dict[str, Any]
    classes: tuple[int, ...]
    threshold: float
    layers: tuple[str, ...]
    architecture_before: tuple[int, ...]
    architecture: tuple[int, ...]
    bits: tuple[int, ...]  # of each layer's weights
    layer_weights: tuple[int, ...]  # how many of them are left
    weights_before: int
    weights_after: int
    parameter_bytes_before: int  # float32 weights and biases of the original
    flops_before: int
    flops_after: int
    error_before: float | None
    error: float | None
    validation_images: int
    emit_ms: float
    file_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def pruning_ratio(self) -> float:
        """Dense weights of the original over dense weights kept; biases are not counted."""
        return self.weights_before / self.weights_after

    @property
    def bits_ratio(self) -> float:
        """The same with the bit widths counted; all are 32 until weights are quantised."""
        stored = sum(bits * count for bits, count in zip(self.bits, self.layer_weights, strict=True))
        return 32 * self.weights_before / stored

    @property
    def file_ratio(self) -> float | None:
        """Float32 bytes of the original's weights and biases over the bytes of the file, all of it."""
        return None if not self.file_bytes else self.parameter_bytes_before / self.file_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields and ratios as plain data."""
        ratios = {
            "pruning_ratio": self.pruning_ratio,
            "bits_ratio": self.bits_ratio,
            "file_ratio": self.file_ratio,
        }
        return asdict(self) | ratios

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Report":
        """The report that ``to_dict`` described."""
        values: dict[str, Any] = {field.name: data[field.name] for field in fields(cls)}
        tuples: dict[str, Any] = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return cls(**(values | tuples))

    def __str__(self) -> str:
        rows = [
            ("context", _context_text(self.context)),
            ("architecture", f"{_dashes(self.architecture_before)} -> {_dashes(self.architecture)}"),
            (
                "weights",
                f"{self.weights_before:,} -> {self.weights_after:,}  ({self.pruning_ratio:.1f} x smaller)",
            ),
            ("FLOPs", f"{self.flops_before:,} -> {self.flops_after:,}"),
            ("bits", _dashes(self.bits)),
        ]
        if self.file_bytes and self.file_ratio:
            rows.append(("file", f"{self.file_bytes:,} bytes  ({self.file_ratio:.1f} x smaller)"))
        if self.error is not None:
            before = "" if self.error_before is None else f"{self.error_before:.2f} % -> "
            images = f"validation, {self.validation_images:,} images"
            rows.append(("error", f"{before}{self.error:.2f} %  ({images})"))
        rows.append(("threshold", f"{self.threshold:g}"))
        rows.append(("emitted in", f"{self.emit_ms:.1f} ms"))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:<13} {value}" for name, value in rows)


def _dashes(numbers: tuple[int, ...]) -> str:
    return "-".join(map(str, numbers))


def _context_text(context: dict[str, Any]) -> str:
    parts = []
    for name, value in context.items():
        parts.append(f"{name} " + (", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return " + ".join(parts) or "no condition"
