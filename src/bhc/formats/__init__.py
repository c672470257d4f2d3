"""Where it goes: one value in, files out; this room knows nothing of contexts or training."""

from bhc.formats.c_header import CMemory, c_memory, c_memory_if_any, c_obstacle, c_text, identifier
from bhc.formats.deployed import Deployed
from bhc.formats.exported_program import torch_bytes
from bhc.formats.file import NetworkFile, Packed, parse_network, read_network
from bhc.formats.folding import unrolled
from bhc.formats.format import Export, Figure, Format, WeightForm
from bhc.formats.onnx_model import onnx_bytes
from bhc.formats.packed import Part, pack, packed_parts, packed_size
from bhc.formats.quantised import LARGEST_BIAS_CODE, Codes, QuantisedNetwork, StoredLayer, with_numbers
from bhc.formats.registry import format_named, format_of, formats, open_deployed, register_format
from bhc.formats.runtime import median_ms, onnx_latency_ms, open_session
from bhc.graph import Signature

__all__ = [
    "LARGEST_BIAS_CODE",
    "CMemory",
    "Codes",
    "Deployed",
    "Export",
    "Figure",
    "Format",
    "NetworkFile",
    "Packed",
    "Part",
    "QuantisedNetwork",
    "Signature",
    "StoredLayer",
    "WeightForm",
    "c_memory",
    "c_memory_if_any",
    "c_obstacle",
    "c_text",
    "format_named",
    "format_of",
    "formats",
    "identifier",
    "median_ms",
    "onnx_bytes",
    "onnx_latency_ms",
    "open_deployed",
    "open_session",
    "pack",
    "packed_parts",
    "packed_size",
    "parse_network",
    "read_network",
    "register_format",
    "torch_bytes",
    "unrolled",
    "with_numbers",
]
