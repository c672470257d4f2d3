"""The two forward passes of a layer: noisy for learning (paper, algorithms 1 and 2), masked for use."""

from torch import Tensor

from bhc.posterior.beliefs import LayerMean, LayerPosterior
from bhc.posterior.noise import Noise
from bhc.posterior.operators import Operator, apply_mean
from bhc.posterior.products import Sampled, ScaledByNoise

# Inside the root: its gradient at a variance of zero would be infinite.
VARIANCE_FLOOR = 1e-8


def noisy_pass(
    operator: Operator,
    h: Tensor,  # (K * B, I, ...)
    posterior: LayerPosterior,
    *,
    num_contexts: int,
    noise: Noise,
) -> Tensor:  # (K * B, O, ...)
    """A sample of the layer's output, scales drawn once an example, weights by local reparameterisation.

    Algorithms 1 and 2 return ``M S + sqrt(V S^2) E``. This computes ``(M + sqrt(V) E) S``, which has the same
    distribution, one multiplication fewer, and a finite gradient where a sampled S crosses zero.
    The bias sits under the output scale: a unit that is switched off gives zero.
    """
    mean = posterior.mean
    examples = h.shape[0] // num_contexts
    if mean.in_scale is not None and posterior.in_scale_logvar is not None:
        h = _times_scale(h, mean.in_scale, posterior.in_scale_logvar, examples=examples, noise=noise)
    product, variance = operator.mean_and_variance(h, mean.weight, posterior.weight_variance)
    output = Sampled.apply(product, variance, noise.normal(product.shape, like=product), VARIANCE_FLOOR)
    if mean.bias is not None:
        output = output + operator.spread(_per_example(mean.bias, examples, num_contexts))
    if mean.out_scale is not None and posterior.out_scale_logvar is not None:
        output = _times_scale(output, mean.out_scale, posterior.out_scale_logvar, examples=examples, noise=noise)
    return output


def masked_pass(
    operator: Operator,
    h: Tensor,  # (K * B, I, ...)
    mean: LayerMean,
    *,
    keep_in: Tensor,  # (K, I)
    keep_out: Tensor,  # (K, O)
) -> Tensor:  # (K * B, O, ...)
    """The deterministic layer of Eq. 4: masks times means, the bias under the output's mask and scale."""
    contexts = keep_in.shape[0]
    examples = h.shape[0] // contexts
    inputs = keep_in if mean.in_scale is None else keep_in * mean.in_scale
    outputs = keep_out if mean.out_scale is None else keep_out * mean.out_scale
    h = h * operator.spread(_per_example(inputs, examples, contexts))
    output = apply_mean(operator, h, mean.weight)
    if mean.bias is not None:
        output = output + operator.spread(_per_example(mean.bias, examples, contexts))
    return output * operator.spread(_per_example(outputs, examples, contexts))


def _times_scale(h: Tensor, mean: Tensor, logvar: Tensor, *, examples: int, noise: Noise) -> Tensor:
    """``h (mu + sigma E)``, scales (K, n) drawn anew for each example and spread over what they cover."""
    contexts, count = mean.shape
    draws = noise.normal((contexts, examples, count), like=mean)
    return ScaledByNoise.apply(h.reshape(contexts, examples, count, -1), mean, logvar, draws).reshape(h.shape)


def _per_example(values: Tensor, examples: int, contexts: int) -> Tensor:
    """(K or 1, n) -> (K * B, n), as a view where it can be one."""
    if values.shape[0] == 1:
        return values.expand(examples * contexts, -1)
    return values[:, None].expand(-1, examples, -1).flatten(0, 1)
