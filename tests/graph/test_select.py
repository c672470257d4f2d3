import torch

from bhc.graph import Select


def test_select_keeps_the_listed_features_in_order():
    x = torch.arange(12.0).reshape(2, 6)
    assert torch.equal(Select(torch.tensor([5, 0, 2]))(x), x[:, [5, 0, 2]])


def test_the_index_belongs_to_the_state():
    select = Select(torch.tensor([5, 0], dtype=torch.int32))
    assert select.state_dict()["index"].dtype == torch.int64
    assert repr(select) == "Select(kept=2)"
