import pytest
import torch
from torch.nn import functional as F

from bhc.training.objective import distillation, negative_elbo, restrict


def test_restricted_cross_entropy_equals_that_of_the_smaller_output() -> None:
    logits = torch.randn(5, 4)
    labels = torch.tensor([1, 3, 3, 1, 1])
    outputs = torch.tensor([[False, True, False, True]])
    expected = F.cross_entropy(logits[:, [1, 3]], (labels == 3).long())
    torch.testing.assert_close(F.cross_entropy(restrict(logits, outputs), labels), expected)


def test_elbo_weighs_each_context_by_its_own_data_and_weight() -> None:
    total = negative_elbo(
        torch.tensor(0.5),
        torch.tensor([10.0, 40.0]),
        num_data=torch.tensor([10.0, 20.0]),
        kl_weight=torch.tensor([1.0, 0.1]),
    )
    assert total.item() == pytest.approx(0.5 + (1.0 + 0.2) / 2)


def test_distillation_is_cross_entropy_without_a_teacher_and_zero_divergence_from_itself() -> None:
    logits, labels = torch.randn(6, 3), torch.randint(0, 3, (6,))
    plain = distillation(logits, labels, logits, teacher_weight=0.0, temperature=2.0)
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels))
    copy = distillation(logits, labels, logits, teacher_weight=1.0, temperature=2.0)
    assert copy.item() == pytest.approx(0.0, abs=1e-6)
