"""What comes out: a threshold, a plan, a slim network and its report."""

from bhc.emission.compressed import Compressed, Prediction, read
from bhc.emission.emit import ThresholdWarning, emit
from bhc.emission.plan import LayerPlan, Plan, make_plan
from bhc.emission.report import Report
from bhc.emission.slim import slim_model

__all__ = [
    "Compressed",
    "LayerPlan",
    "Plan",
    "Prediction",
    "Report",
    "ThresholdWarning",
    "emit",
    "make_plan",
    "read",
    "slim_model",
]
