import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, WeightForm, onnx_bytes, open_session
from bhc.graph import INPUT, Graph, Step
from bhc.layers import Add, Concat, Multiply, NetworkInput, call_of, kinds
from bhc.layers.aten import Dtype, Read

from .chains import NETWORKS, TORCH_REMARKS, assert_alike, floats, graph_of, inputs, quantised

pytestmark = TORCH_REMARKS
FORMS = [WeightForm.FLOATS, WeightForm.INTEGERS]


def run(content: bytes, x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(open_session(content).run(["logits"], {"input": x.numpy()})[0])


def initialisers(content: bytes) -> dict[str, np.ndarray]:
    tensors = onnx.load_from_string(content).graph.initializer
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def test_the_networks_have_every_kind_of_step() -> None:
    calls = {"pointwise", "movement", "along-axes", "norm", "product", "attention", "opaque"}
    elsewhere = {*calls, "given", "tied"}  # in layers/onnx_rules, test_inputs.py, emission/test_shared.py
    tried = {type(step.module) for graph, _ in NETWORKS.values() for step in graph.steps}
    assert tried == {kind.module for kind in kinds() if kind.name not in elsewhere}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_answers_as_the_module_on_batches_of_any_size(name: str) -> None:
    for network, form in ((floats(name), FORMS[0]), *((quantised(name), form) for form in FORMS)):
        content = onnx_bytes(network, weights=form)
        for count in (1, 2, 300):
            x = inputs(network.input_shape, count)
            given, expected = run(content, x), network.graph(x)
            assert_alike(given, expected, part=1e-5)
            if network.weights:
                assert torch.equal(given.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_checker_accepts_every_model_and_it_says_its_shapes(name: str, form: WeightForm) -> None:
    network = quantised(name)
    content = onnx_bytes(network, weights=form)
    assert content == onnx_bytes(quantised(name), weights=form), "equal networks give equal bytes"
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    (source,), (sink,) = open_session(content).get_inputs(), open_session(content).get_outputs()
    assert source.shape == ["batch", *network.input_shape]
    assert sink.shape == ["batch", len(network.labels)]
    assert source.type == sink.type == "tensor(float)"


@pytest.mark.parametrize(("step", "kind"), [(0.02, np.int8), (0.001, np.int16), (1e-9, np.int16)])
def test_integers_are_as_narrow_as_the_codes(step: float, kind: type) -> None:
    network = quantised("relu", step=step)
    arrays = initialisers(onnx_bytes(network, weights=WeightForm.INTEGERS))
    for name, codes in network.weights.items():
        assert arrays[f"{name}.codes"].dtype == kind
        assert np.array_equal(arrays[f"{name}.codes"], codes.codes)
        assert f"{name}.weight" not in arrays
    x = inputs(network.input_shape)
    assert_alike(run(onnx_bytes(network, weights=WeightForm.INTEGERS), x), network.graph(x), part=1e-5)


def test_a_layer_that_is_not_quantised_stays_floats_among_integers() -> None:
    chain, shape = graph_of("relu")
    codes = {"fc1": Codes.of(chain.fc1.weight, 0.05)}
    network = QuantisedNetwork.build(chain, weights=codes, biases={}, input_shape=shape, labels=(0, 1, 2))
    content = onnx_bytes(network, weights=WeightForm.INTEGERS)
    arrays = initialisers(content)
    assert arrays["fc1.codes"].dtype == np.int8
    assert np.array_equal(arrays["fc2.weight"], chain.fc2.weight.numpy())
    assert_alike(run(content, inputs(shape)), network.graph(inputs(shape)), part=1e-5)


def test_the_normalisation_is_folded_where_it_can_be() -> None:
    cases = {"conv-and-a-mean": True, "padding-and-a-mean": False, "normalised-before-it-branches": True}
    for name, folded in cases.items():
        kinds = [node.op_type for node in onnx.load_from_string(onnx_bytes(floats(name))).graph.node]
        assert ("Sub" in kinds) != folded


def test_metadata_is_json_under_the_library_s_name() -> None:
    metadata: dict[str, Any] = {"classes": [3, 4], "class_names": ["drei", "fünf"], "report": {"error": None}}
    content = onnx_bytes(floats("relu"), metadata=metadata)
    props = {prop.key: json.loads(prop.value) for prop in onnx.load_from_string(content).metadata_props}
    assert props == {f"bhc.{key}": value for key, value in metadata.items()}
    assert open_session(content).get_modelmeta().custom_metadata_map["bhc.classes"] == "[3, 4]"
    assert not onnx.load_from_string(onnx_bytes(floats("relu"))).metadata_props


def test_bit_packed_weights_are_refused() -> None:
    with pytest.raises(BhcError, match="bit-packed"):
        onnx_bytes(quantised("relu"), weights=WeightForm.BIT_PACKED)


@pytest.mark.parametrize("dtypes", [("float32", "int64"), ("bool", "bool"), ("uint8", "int8")])
@pytest.mark.parametrize("joint", [Add(), Multiply(), Concat()])
def test_values_of_other_dtypes_meet_as_they_do_in_torch(joint: torch.nn.Module, dtypes: tuple[str, str]) -> None:
    steps = [Step(name, NetworkInput(name, at, (3,), dtypes[at]), (INPUT,)) for at, name in enumerate("ab")]
    made = torch.promote_types(*(getattr(torch, dtype) for dtype in dtypes))
    known = {0: str(made).removeprefix("torch.")}
    cast = call_of("aten._to_copy.default", [Read(0)], {"dtype": Dtype("float32")}, {}, None, known)
    graph = Graph([*steps, Step("joint", joint, ("a", "b")), Step("floats", cast, ("joint",))])
    x = [torch.tensor([[0, 1, 1], [2, 0, 5]]).to(getattr(torch, dtype)) for dtype in dtypes]
    network = QuantisedNetwork(graph, (), tuple(range(graph(*x).shape[1])))
    (given,) = open_session(onnx_bytes(network)).run(None, {"a": x[0].numpy(), "b": x[1].numpy()})
    assert torch.equal(torch.from_numpy(given), graph(*x))


def test_an_operator_without_a_rule_is_written_by_torch_in_floats_alone() -> None:
    step = Step("curve", call_of("aten.asinh.default", [Read(0)]), ("fc",))
    graph = Graph([Step("fc", torch.nn.Linear(4, 2), (INPUT,)), step]).eval().requires_grad_(False)
    network = QuantisedNetwork(graph, (4,), (0, 1))
    x = inputs((4,), 5)
    assert_alike(run(onnx_bytes(network), x), graph(x), part=1e-5)
    with pytest.raises(BhcError, match="asinh"):
        onnx_bytes(network, weights=WeightForm.INTEGERS)
