"""Makes ``import torchvision`` work where its compiled part does not load."""

import sys
from importlib import import_module

import torch

_kept: list[torch.library.Library] = []  # operators are there as long as their library is


def provide_torchvision() -> None:
    """Import torchvision; where its operators are missing, declare those that the import asks for.

    Packages that import it break otherwise. The networks here do not call these operators.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        for name in [each for each in sys.modules if each.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        import_module("torchvision")
    except ImportError:  # who needs it will say so
        return
