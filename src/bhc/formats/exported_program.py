"""A network as a torch ``ExportedProgram``: a ``.pt2`` file that torch loads without bhc."""

import io
import json
from collections.abc import Mapping
from typing import Any

import torch

from bhc.formats.quantised import QuantisedNetwork

CARD = "bhc.json"  # the extra file inside that says what the network is for


def torch_bytes(network: QuantisedNetwork, *, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The file's content: float inputs of any batch size in, logits out."""
    example = torch.zeros(2, *network.input_shape)
    program = torch.export.export(
        network.module(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: json.dumps(dict(metadata or {}))})
    return file.getvalue()
