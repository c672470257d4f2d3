import torch

from bhc.hypernet import Initial, LowRank

from .toys import PAIRS, all_equal, conditional, pairs, perturb_, tensors_of


def model_in_use():
    model = conditional(LowRank(2), initial=Initial())
    perturb_(model.hypernet)
    return model.hypernet, PAIRS.encode(pairs(3))


def test_means_alone_are_those_of_the_posterior():
    hypernet, encoding = model_in_use()
    for alone, belief in zip(hypernet.means(encoding), hypernet.posterior(encoding), strict=True):
        assert torch.equal(alone.weight.dense(), belief.mean.weight.dense())
        for name in ("bias", "in_scale", "out_scale"):
            first, second = getattr(alone, name), getattr(belief.mean, name)
            assert first is second is None or torch.equal(first, second)


def test_dropout_rates_alone_are_those_of_the_posterior():
    hypernet, encoding = model_in_use()
    for alone, belief in zip(hypernet.dropouts(encoding), hypernet.posterior(encoding), strict=True):
        torch.testing.assert_close(alone.in_log_dropout, belief.in_scale.log_dropout)
        torch.testing.assert_close(alone.out_log_dropout, belief.out_scale.log_dropout)


def test_frozen_gates_take_no_gradient():
    hypernet, _ = model_in_use()
    hypernet.freeze_gates_()
    assert not any(parameter.requires_grad for parameter in hypernet.gates.parameters())
    learning = (hypernet.embedder, hypernet.vectors, hypernet.weights)
    assert all(parameter.requires_grad for module in learning for parameter in module.parameters())


def test_gates_can_be_frozen_again_where_the_means_are_now():
    hypernet, encoding = model_in_use()
    hypernet.freeze_gates_()
    perturb_(hypernet)
    hypernet.freeze_gates_()
    for alone, belief in zip(hypernet.dropouts(encoding), hypernet.posterior(encoding), strict=True):
        torch.testing.assert_close(alone.out_log_dropout, belief.out_scale.log_dropout)


def test_frozen_offsets_are_all_offsets_and_nothing_else():
    hypernet, _ = model_in_use()
    hypernet.freeze_offsets_()
    for name, parameter in hypernet.named_parameters():
        assert parameter.requires_grad != name.endswith("offset"), name


def test_a_context_alone_is_believed_as_in_a_batch():
    hypernet, encoding = model_in_use()
    together = tensors_of(hypernet.posterior(encoding))
    alone = tensors_of(hypernet.posterior(tuple(part[1:2] for part in encoding)))
    for batched, single in zip(together, alone, strict=True):
        torch.testing.assert_close(batched[1:2] if len(batched) > 1 else batched, single)


def test_asking_does_not_change_the_answer():
    hypernet, encoding = model_in_use()
    assert all_equal(tensors_of(hypernet.posterior(encoding)), tensors_of(hypernet.posterior(encoding)))
