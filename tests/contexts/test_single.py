import pytest
import torch

from bhc.contexts import ContextBatch, SingleContext
from bhc.errors import BhcError


def test_nothing_is_asked_and_all_classes_stay():
    space = SingleContext()
    assert space.conditions == ()
    context = space.resolve({})
    assert context.classes is None
    assert ContextBatch.of([context], 4).outputs.all()


def test_the_given_classes_stay_whatever_their_order():
    context = SingleContext([7, 2, 2]).resolve({})
    assert context.classes == (2, 7)
    assert ContextBatch.of([context], 10).outputs[0].nonzero().flatten().tolist() == [2, 7]


@pytest.mark.parametrize("classes", [None, (2, 7)])
@pytest.mark.parametrize("request_", [{"classes": [1]}, {"budget": 1}, {"domain": torch.zeros(1)}])
def test_a_condition_is_refused_with_what_the_model_was_made_for(classes, request_):
    (name,) = request_
    with pytest.raises(BhcError, match=f"condition on {name}") as caught:
        SingleContext(classes).resolve(request_)
    assert "it was made for one context" in caught.value.hint


def test_training_draws_the_same_context_again_and_again():
    rng = torch.Generator().manual_seed(0)
    everything = SingleContext().sample(3, 4, rng=rng)
    assert everything.outputs.all()
    torch.testing.assert_close(everything.class_rates, torch.full((3, 4), 0.25))
    some = SingleContext((1, 3)).sample(3, 4, rng=rng)
    assert some.outputs.tolist() == [[False, True, False, True]] * 3
    torch.testing.assert_close(some.class_rates, torch.tensor([[0.0, 0.5, 0.0, 0.5]]).expand(3, 4))


def test_what_training_draws_is_what_a_request_gives():
    for space in (SingleContext(), SingleContext((1, 3))):
        drawn = space.sample(1, 4, rng=torch.Generator())
        asked = ContextBatch.of([space.resolve({})], 4)
        torch.testing.assert_close(drawn.class_rates, asked.class_rates)
        assert torch.equal(drawn.outputs, asked.outputs)
