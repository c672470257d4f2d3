import pytest
import torch
from torch.nn import functional as F

from bhc.training.objective import distillation, negative_elbo, restrict


def test_restricting_rules_out_other_classes_and_keeps_the_rest() -> None:
    logits = torch.randn(4, 3)
    outputs = torch.tensor([[True, True, False], [False, True, True]])
    restricted = restrict(logits, outputs)
    assert restricted[:2, 2].max() < -1e8
    assert restricted[2:, 0].max() < -1e8
    torch.testing.assert_close(restricted[:2, :2], logits[:2, :2])
    torch.testing.assert_close(restricted[2:, 1:], logits[2:, 1:])


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


@pytest.mark.parametrize("teacher_weight", [0.0, 0.7])
def test_labels_in_part_give_the_mixture_of_the_losses(teacher_weight: float) -> None:
    rng = torch.Generator().manual_seed(0)
    outputs = torch.tensor([[True, False, True, True]])
    logits = torch.randn(6, 4, generator=rng, requires_grad=True)
    student, teacher = restrict(logits, outputs), restrict(torch.randn(6, 4, generator=rng), outputs)
    first, second = torch.tensor([0, 2, 3, 0, 2, 2]), torch.tensor([2, 2, 0, 3, 0, 3])
    share = torch.tensor([[0.0], [0.2], [0.5], [0.4], [0.1], [0.3]])
    told = (1 - share) * F.one_hot(first, 4) + share * F.one_hot(second, 4)
    taught = {"teacher_weight": teacher_weight, "temperature": 2.0}
    given = distillation(student, told, teacher, **taught)
    expected = sum(
        part * distillation(student[[row]], labels[[row]], teacher[[row]], **taught) / 6
        for labels, parts in ((first, 1 - share), (second, share))
        for row, part in enumerate(parts[:, 0])
    )
    torch.testing.assert_close(given, expected)
    given.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert torch.equal((logits.grad != 0).any(0), outputs[0])
