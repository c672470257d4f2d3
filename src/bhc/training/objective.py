"""The objective (paper, Eq. 3) and the loss of consolidation."""

from torch import Tensor
from torch.nn import functional as F

# Far below any logit, and finite: the masked entries must not turn a gradient into NaN.
OUT_OF_CONTEXT = -1e9


def restrict(logits: Tensor, outputs: Tensor) -> Tensor:
    """Logits (K * B, C) with the classes outside each context (K, C) ruled out."""
    contexts = outputs.shape[0]
    apart = logits.reshape(contexts, -1, logits.shape[1])
    return apart.masked_fill(~outputs[:, None], OUT_OF_CONTEXT).flatten(0, 1)


def negative_elbo(
    cross_entropy: Tensor,
    divergence: Tensor,  # (K or 1,) of each context's posterior from the prior
    *,
    num_data: Tensor,  # (K,)
    kl_weight: Tensor,  # (K,)
) -> Tensor:
    """``E[-log p(y | x, W)] + lambda_KL KL / N`` a training example, averaged over the contexts."""
    return cross_entropy + (kl_weight * divergence / num_data).mean()


def distillation(
    logits: Tensor,  # (n, C), restricted
    labels: Tensor,  # (n,), or (n, C) where an example belongs to several in part
    teacher_logits: Tensor,  # (n, C), restricted alike
    *,
    teacher_weight: float,
    temperature: float,
) -> Tensor:
    """``(1 - w) CE + w T^2 KL(teacher || student)`` with both softened by T."""
    loss = F.cross_entropy(logits, labels)
    if teacher_weight == 0:
        return loss
    student = F.log_softmax(logits / temperature, dim=1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=1)
    softened = F.kl_div(student, teacher, log_target=True, reduction="batchmean")
    return (1 - teacher_weight) * loss + teacher_weight * temperature**2 * softened
