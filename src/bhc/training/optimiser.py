"""How large the steps of means are in a given network, and Adam for steps that are captured as one CUDA graph.

A rate is that of a network of few layers, with weights and numbers of inputs as LeNets have them. An optimiser such as
Adam moves every weight by about its rate, however small the weight is and however many move with it, and what a step
does to one layer goes through all that follow.
"""

from collections.abc import Iterator
from math import sqrt

import torch
from torch import Tensor, nn
from torch.optim import Adam

from bhc.graph import Layer
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork

USUAL_SIZE = 0.03  # root mean square of a layer's weights
USUAL_INPUTS = 800  # weights that one output sums over
SMALLEST_FACTOR = 0.01  # a layer of zeros must learn too
RISING = 100  # steps

PIECE = 8192  # numbers that one block of threads updates
LARGE = 2**22  # numbers of a tensor that is enough for a whole GPU as it is


def slowdown(network: ConditionalNetwork) -> float:
    """How much smaller steps of weights are than in a network of few layers.

    At the rate that suits four layers a residual network of 20, its batch norms folded, forgets all it knew within ten
    steps.
    """
    return max(1.0, len(network.layers) / FEW_LAYERS) ** 1.5


def rising_steps(network: ConditionalNetwork) -> int:
    """Over how many steps rates rise: Adam's first steps are all of full length, wherever they point."""
    return RISING if len(network.layers) > FEW_LAYERS else 0


def of_weights(network: ConditionalNetwork) -> dict[nn.Parameter, float]:
    """The factor of each parameter that generates a layer's weights."""
    factors = [_of_layer(layer) / slowdown(network) for layer in network.layers]
    return {
        parameter: factor
        for factor, head in zip(factors, network.hypernet.weight_heads, strict=True)
        for parameter in head.parameters()
    }


def of_vectors(network: ConditionalNetwork) -> float:
    """The factor of everything else in learning: a unit goes when its scale has gone the whole way from one to nothing,
    so scales slow down less."""
    return slowdown(network) ** -0.5


def _of_layer(layer: Layer) -> float:
    """For weights that are small, and for many of them under one output.

    Weight decay and folded batch norms leave some layers of deep networks with weights of a tenth of the usual size; at
    one rate for all they would be overwritten before others have moved. When n weights move alike, their sum moves by n
    steps, beside a sum of n random signs that is sqrt(n) in size.
    """
    size = max(SMALLEST_FACTOR, layer.weight_size / USUAL_SIZE)
    inputs = layer.num_inputs * layer.kernel_area / USUAL_INPUTS
    return min(1.0, size) / sqrt(max(1.0, inputs))


class PiecewiseAdam(Adam):
    """The same update, its parameters given to the fused kernel in pieces, and their steps counted all at once.

    A block of that kernel walks over 65,536 numbers: seven of them update a layer of LeNet-5-Caffe, a twentieth of a
    large GPU, up to forty microseconds for each learning rate there is. What makes the pieces costs time on the host,
    so this is for steps that are captured: there it is paid once.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update everything that has a gradient, unless ``found_inf`` is 1; gradients are divided by ``grad_scale``."""
        assert closure is None
        scale, bad = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        learned = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        states = [[self._state_of(parameter) for parameter in parameters] for parameters in learned]
        steps = [state["step"] for own in states for state in own]
        torch._foreach_add_(steps, 1)
        for group, parameters, own in zip(self.param_groups, learned, states, strict=True):
            if not parameters:  # the kernel cannot do with nothing
                continue
            given = [piece for pair in zip(parameters, own, strict=True) for piece in _pieces(*pair)]
            values, gradients, firsts, seconds, counts = (list(column) for column in zip(*given, strict=True))
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                values,
                gradients,
                firsts,
                seconds,
                [],
                counts,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
                found_inf=bad,
            )
        torch._foreach_sub_(steps, [bad] * len(steps))  # one tensor for all would be read back as a number

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """What Adam keeps of a parameter, under the names it has there."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _pieces(parameter: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """What the kernel is given of a parameter: values, gradients, both moments, and the count of steps each time.

    Large ones stay whole, and so do those that are laid out in another order, as all that belongs to them is.
    """
    assert parameter.grad is not None
    tensors = parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]
    if parameter.numel() >= LARGE or not all(tensor.is_contiguous() for tensor in tensors):
        yield *tensors, state["step"]
        return
    for piece in zip(*(tensor.view(-1).split(PIECE) for tensor in tensors), strict=True):
        yield *piece, state["step"]
