"""Where it goes: one value in, files out; this room knows nothing of contexts or training."""

from importlib import import_module
from pkgutil import iter_modules

from bhc.formats.bhc_content import Part
from bhc.formats.bhc_file import NetworkFile, Packed, pack, packed_parts, packed_size, parse_network, read_network
from bhc.formats.c_header import c_memory, c_memory_if_any, c_obstacle, c_text, identifier
from bhc.formats.exported_program import load_program, torch_bytes
from bhc.formats.format import (
    Deployed,
    Export,
    Figure,
    Format,
    WeightForm,
    format_named,
    format_of,
    format_wanted,
    formats,
    median_ms,
    open_deployed,
    register_format,
)
from bhc.formats.onnx_model import onnx_bytes, onnx_latency_ms, open_session
from bhc.formats.quantised import (
    LARGEST_BIAS_CODE,
    Codes,
    PooledConvolution,
    QuantisedNetwork,
    StoredLayer,
    fold_normalisation,
    round_step,
    unrolled,
    with_numbers,
)
from bhc.graph import Signature

for _module in iter_modules(__path__):  # a format of ours is one file here, which registers it
    import_module(f"{__name__}.{_module.name}")
