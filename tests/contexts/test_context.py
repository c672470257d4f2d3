import json

import pytest
import torch

from bhc.contexts import Context, ContextBatch


def test_a_context_reads_as_text():
    assert str(Context()) == "no condition"
    assert str(Context(classes=(3, 4))) == "classes 3, 4"
    everything = Context(classes=(3,), domain=torch.zeros(1, 2, 2), budget=1.0)
    assert str(everything) == "classes 3 + an input domain + budget 1"


def test_a_context_is_plain_data_without_what_was_not_asked():
    assert Context(classes=(3, 4), budget=0.0).to_dict() == {"classes": [3, 4], "budget": 0.0}
    assert Context().to_dict() == {}
    json.dumps(Context(classes=(3,), appearance=(1.0,), domain=torch.zeros(1, 2, 2)).to_dict())


def test_contexts_become_rates_and_outputs():
    contexts = [Context(classes=(0, 2)), Context(classes=(1,)), Context(classes=(0, 2), appearance=(1.0, 0.25))]
    batch = ContextBatch.of(contexts, 3)
    assert batch.outputs.tolist() == [[True, False, True], [False, True, False], [True, False, True]]
    torch.testing.assert_close(batch.class_rates, torch.tensor([[0.5, 0, 0.5], [0, 1, 0], [0.8, 0, 0.2]]))
    assert batch.domain is None
    assert batch.budget is None
    whole = ContextBatch.of([Context(classes=(0, 1), appearance=(1, 1))], 2)
    assert whole.appearance.is_floating_point()


def test_without_classes_all_are_kept_and_equally_frequent():
    for batch in (ContextBatch.unconditioned(3, 4), ContextBatch.of([Context(budget=1.0)] * 3, 4)):
        assert len(batch) == 3
        assert batch.num_classes == 4
        assert torch.equal(batch.class_rates, torch.full((3, 4), 0.25))
        assert batch.outputs.all()
    assert batch.budget.tolist() == [[1.0]] * 3
    assert ContextBatch.of([], 3).outputs.shape == ContextBatch.of([], 3).class_rates.shape == (0, 3)


def test_a_batch_moves_with_all_its_parts():
    contexts = [Context(classes=(0,), domain=torch.zeros(1, 2, 2), budget=0.0)]
    moved = ContextBatch.of(contexts, 2).to(torch.device("meta"))
    parts = (moved.class_rates, moved.outputs, moved.domain, moved.budget)
    assert all(part.device.type == "meta" for part in parts)
    assert ContextBatch.unconditioned(1, 2).to(torch.device("cpu")).domain is None


def test_frequencies_are_parts_of_one_unless_all_are_equal():
    assert Context(classes=(1, 4), appearance=(1.0, 0.25)).frequencies == pytest.approx((0.8, 0.2))
    assert Context(classes=(1, 4), appearance=(1.0, 1.0)).frequencies is None
    assert Context(classes=(1, 4)).frequencies is None
