"""Files of every form, opened as ``bhc evaluate`` opens them."""

from pathlib import Path

import pytest

from bhc.formats import QuantisedNetwork, onnx_bytes, open_deployed, pack, torch_bytes

from .chains import TORCH_REMARKS, assert_alike, inputs, quantised

pytestmark = TORCH_REMARKS
NAMES = ["plain-conv", "shortcut-of-zeros", "squeeze-and-excite", "sound", "input-read-late"]


def write(network: QuantisedNetwork, path: Path) -> None:
    about = {
        "classes": list(network.labels),
        "input_shape": list(network.input_shape),
        "temperature": network.temperature,
    }
    match path.suffix:
        case ".bhc":
            path.write_bytes(pack(network))
        case ".onnx":
            path.write_bytes(onnx_bytes(network, metadata=about))
        case ".pt2":
            path.write_bytes(torch_bytes(network, metadata=about))


@pytest.mark.parametrize("suffix", [".bhc", ".onnx", ".pt2"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_form_answers_as_the_network(name: str, suffix: str, tmp_path: Path) -> None:
    network = quantised(name)
    write(network, tmp_path / f"small{suffix}")
    deployed = open_deployed(tmp_path / f"small{suffix}")
    assert deployed.labels == network.labels
    assert deployed.signature == network.signature
    assert deployed.temperature == network.temperature
    x = inputs(network.input_shape, 9)
    expected = network.graph(x)
    assert_alike(deployed.logits(x), expected, part=1e-5)
