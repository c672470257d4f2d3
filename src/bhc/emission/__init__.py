"""What comes out: a threshold or limits, a plan, a slim network, its bits, its files and its report."""

from bhc.emission.compressed import Compressed, Prediction, from_file, read
from bhc.emission.emit import DomainWarning, ThresholdWarning, emit
from bhc.emission.guarantee import Guarantee
from bhc.emission.limits import Limits
from bhc.emission.plan import Cutter, LayerPlan, Plan, make_plan
from bhc.emission.precision import Float32, Precision, VarianceBits
from bhc.emission.report import Report
from bhc.emission.slim import slim_model

__all__ = [
    "Compressed",
    "Cutter",
    "DomainWarning",
    "Float32",
    "Guarantee",
    "LayerPlan",
    "Limits",
    "Plan",
    "Precision",
    "Prediction",
    "Report",
    "ThresholdWarning",
    "VarianceBits",
    "emit",
    "from_file",
    "make_plan",
    "read",
    "slim_model",
]
