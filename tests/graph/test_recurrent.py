"""Recurrent layers of any make are taken apart: the same answers, and hidden units that can go."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.graph import Graph, capture, find_units, find_whole
from bhc.graph.weighted import find_layers
from bhc.layers import Recurrence

from .nets import net_of, seeded

INPUTS, HIDDEN, STEPS = 3, 4, 5
X = (2, STEPS, INPUTS)


def last_output(net: Any, x: Tensor) -> Tensor:
    return net.end(net.rnn(x)[0][:, -1])


def all_outputs(net: Any, x: Tensor) -> Tensor:
    return net.end(net.rnn(x)[0].mean(1))


def state_of(answer: Any) -> Tensor:
    """The hidden state of LSTMs, which have another one, and of others."""
    return answer[1][0] if isinstance(answer[1], tuple) else answer[1]


def last_state(net: Any, x: Tensor) -> Tensor:
    return net.end(state_of(net.rnn(x))[-1])


def last_states(net: Any, x: Tensor) -> Tensor:
    state = state_of(net.rnn(x))
    return net.end(torch.cat([state[-2], state[-1]], 1))


def time_first(net: Any, x: Tensor) -> Tensor:
    return net.end(net.rnn(x.transpose(0, 1))[0][-1])


def time_first_state(net: Any, x: Tensor) -> Tensor:
    return net.end(state_of(net.rnn(x.transpose(0, 1))).squeeze(0))


def network(forward: Callable[..., Tensor], kind: type[nn.RNNBase] = nn.LSTM, **options: Any) -> nn.Module:
    wide = 2 if options.get("bidirectional") and forward is not last_state else 1
    options = {"batch_first": "time_first" not in forward.__name__} | options
    return net_of(forward, rnn=kind(INPUTS, HIDDEN, **options), end=nn.Linear(wide * HIDDEN, 2))


def recurrences(graph: Graph) -> list[str]:
    return [step.name for step in graph.steps if isinstance(step.module, Recurrence)]


BOTH = {"bidirectional": True}
FORMS: dict[str, tuple[Callable[..., Tensor], dict[str, Any], int]] = {
    "the last output": (last_output, {}, 1),
    "all outputs": (all_outputs, {}, 1),
    "the last state": (last_state, {}, 1),
    "no biases": (last_output, {"bias": False}, 1),
    "two layers with dropout between": (last_output, {"num_layers": 2, "dropout": 0.3}, 2),
    "the last state of two layers": (last_state, {"num_layers": 2}, 2),
    "both directions": (all_outputs, BOTH, 2),
    "the last states of both directions": (last_states, BOTH, 2),
    "the backward state alone": (last_state, BOTH, 1),
    "two layers in both directions": (last_states, BOTH | {"num_layers": 2}, 4),
    "time first": (time_first, {}, 1),
    "the state, time first": (time_first_state, {}, 1),
    "two layers in both directions, time first": (time_first, BOTH | {"num_layers": 2}, 4),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_computes_the_same_and_can_be_cut(form: str, kind: type[nn.RNNBase]) -> None:
    forward, options, count = FORMS[form]
    net, x = network(forward, kind, **options), 2 * seeded(*X)
    graph = capture(net, x)
    torch.testing.assert_close(graph(x), net.eval()(x), rtol=0, atol=1e-5)
    units, names = find_units(graph, X[1:]), recurrences(graph)
    assert len(names) == count
    assert not any(units.always[units.writes[name]].any() for name in names)


@torch.no_grad()
def test_a_relu_is_no_tanh() -> None:
    net = network(all_outputs, nn.RNN, nonlinearity="relu")
    graph, x = capture(net, seeded(*X)), seeded(*X)
    torch.testing.assert_close(graph(x), net.eval()(x), rtol=0, atol=1e-5)
    assert graph.get_submodule("rnn_hh_l0").cell == "relu"


def test_steps_are_called_as_torch_calls_its_weights_and_biases_that_meet_are_one() -> None:
    graph = capture(network(last_states, **BOTH, num_layers=2), seeded(*X))
    ends = [f"rnn_{end}_l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse") for end in ("ih", "hh")]
    assert [step.name for step in graph.steps if step.name.startswith("rnn_")] == ends
    assert graph.get_submodule("rnn_ih_l0").bias is not None
    assert graph.get_submodule("rnn_hh_l0").bias is None
    gru = capture(network(last_state, nn.GRU), seeded(*X))
    assert gru.get_submodule("rnn_hh_l0").bias is not None  # a gate stands between the two


def test_biases_of_recurrent_layers_are_no_weights() -> None:
    graph = capture(network(last_output), seeded(*X))
    weights = 4 * HIDDEN * (INPUTS + HIDDEN) + 2 * HIDDEN
    assert graph.original == (weights, weights + 2 * 4 * HIDDEN + 2)


def test_the_gates_of_a_hidden_unit_and_what_it_gives_are_one_unit() -> None:
    graph = capture(network(all_outputs, nn.GRU, **BOTH), seeded(*X))
    units = find_units(graph, X[1:])
    for way in ("", "_reverse"):
        hidden = units.carried[f"rnn_hh_l0{way}"]
        assert len(set(hidden)) == HIDDEN
        assert units.carried[f"rnn_ih_l0{way}"].tolist() == units.writes[f"rnn_hh_l0{way}"].tolist() == 3 * [*hidden]
        assert units.reads[f"rnn_hh_l0{way}"].tolist() == hidden.tolist()
        assert units.tied[hidden].all()
    both = [units.carried[f"rnn_hh_l0{way}"] for way in ("", "_reverse")]
    assert units.reads["end"].tolist() == np.concatenate(both).tolist()
    assert not set(both[0]) & set(both[1])


def test_a_recurrence_reads_all_hidden_units_that_there_are() -> None:
    graph = capture(network(last_output), seeded(*X))
    layers = {layer.name: layer for layer in find_layers(graph, X[1:], find_units(graph, X[1:]))}
    assert {name: layer.may_skip for name, layer in layers.items()} == {
        "rnn_ih_l0": True,
        "rnn_hh_l0": False,
        "end": True,
    }
    assert layers["rnn_hh_l0"].width == HIDDEN
    assert layers["rnn_hh_l0"].output_area == STEPS


WHOLE: dict[str, tuple[Callable[..., Tensor], dict[str, Any], str]] = {
    "the cell's state is read": (lambda net, x: net.end(net.rnn(x)[1][1][-1]), {}, "cell state"),
    "a state to begin with": (
        lambda net, x: net.end(net.rnn(x, (net.start.expand(1, x.shape[0], -1).contiguous(),) * 2)[0][:, -1]),
        {},
        "initial state",
    ),
    "outputs are projected": (last_output, {"proj_size": 2}, "projected"),
    "used in two ways": (
        lambda net, x: net.end(net.rnn(x)[0][:, -1] + (x @ net.rnn.weight_ih_l0.mT)[:, -1, :HIDDEN]),
        {},
        "several ways",
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_rule_stays_whole_and_says_why(name: str) -> None:
    forward, options, why = WHOLE[name]
    rnn = nn.LSTM(INPUTS, HIDDEN, batch_first=True, **options)
    net = net_of(forward, rnn=rnn, start=nn.Parameter(seeded(1, 1, HIDDEN)), end=nn.Linear(rnn.proj_size or HIDDEN, 2))
    x = seeded(*X)
    graph = capture(net, x)
    torch.testing.assert_close(graph(x), net.eval()(x), rtol=0, atol=1e-5)
    units = find_units(graph, X[1:])
    assert not recurrences(graph)
    assert why in find_whole(graph, find_layers(graph, X[1:], units), units)[0].reason


def test_a_state_of_zeros_may_be_ones_own() -> None:
    for zeros in (lambda x: torch.zeros(1, x.shape[0], HIDDEN), lambda x: x.new_zeros(1, x.shape[0], HIDDEN)):
        net = net_of(
            lambda net, x, zeros=zeros: net.end(net.rnn(x, zeros(x))[0][:, -1]),
            rnn=nn.GRU(INPUTS, HIDDEN, batch_first=True),
            end=nn.Linear(HIDDEN, 2),
        )
        assert recurrences(capture(net, seeded(*X))) == ["rnn_hh_l0"]


def test_hidden_units_that_are_the_outputs_are_no_classes_to_be_left_out() -> None:
    """Each of them is fed back to all others."""
    net = net_of(lambda net, x: net.rnn(x)[0][:, -1], rnn=nn.LSTM(INPUTS, HIDDEN, batch_first=True))
    graph = capture(net, seeded(*X))
    units = find_units(graph, X[1:])
    assert not units.outputs_are_free
    assert units.always[units.carried[graph.last_step]].all()
    with pytest.raises(BhcError, match="class"):
        bhc.wrap(net, bhc.ClassSubsets(HIDDEN), example_input=seeded(*X))


def test_features_are_not_left_out_of_what_is_read_place_by_place() -> None:
    with pytest.raises(BhcError, match="place by place"):
        bhc.wrap(network(last_output), bhc.FeatureSubsets(X[1:]), example_input=seeded(*X))


@torch.no_grad()
def test_what_is_picked_from_values_side_by_side_is_that_value() -> None:
    net = net_of(
        lambda net, x: net.end(torch.stack([net.first(x), x, net.second(x)])[-1]),
        first=nn.Linear(4, 4),
        second=nn.Linear(4, 4),
        end=nn.Linear(4, 2),
    )
    x = seeded(2, 4)
    graph = capture(net, x)
    assert [step.name for step in graph.steps] == ["second", "end"]
    torch.testing.assert_close(graph(x), net(x))
