"""Where it goes: one value in, files out; this room knows nothing of contexts or training."""

from bhc.formats.c_header import CMemory, c_memory, c_memory_if_any, c_obstacle, c_text, identifier
from bhc.formats.deployed import Deployed, open_deployed
from bhc.formats.exported_program import torch_bytes
from bhc.formats.file import NetworkFile, parse_network, read_network
from bhc.formats.forms import WeightForm
from bhc.formats.onnx_model import onnx_bytes
from bhc.formats.packed import Part, pack, packed_parts, packed_size
from bhc.formats.quantised import LARGEST_BIAS_CODE, Codes, QuantisedNetwork, StoredLayer, with_numbers
from bhc.formats.runtime import median_ms, onnx_latency_ms, open_session
from bhc.formats.unroll import unrolled

__all__ = [
    "LARGEST_BIAS_CODE",
    "CMemory",
    "Codes",
    "Deployed",
    "NetworkFile",
    "Part",
    "QuantisedNetwork",
    "StoredLayer",
    "WeightForm",
    "c_memory",
    "c_memory_if_any",
    "c_obstacle",
    "c_text",
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
    "torch_bytes",
    "unrolled",
    "with_numbers",
]
