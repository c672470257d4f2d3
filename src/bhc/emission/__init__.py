"""What comes out: a threshold or limits, a plan, a slim network, its bits, its files and its report."""

from bhc.emission.alarm import Alarm, auroc, outside_score
from bhc.emission.compressed import Compressed, Prediction, from_file, read
from bhc.emission.emit import CHUNK, DomainWarning, Request, ThresholdWarning, emit, emit_many
from bhc.emission.guarantee import Guarantee
from bhc.emission.judge import expected_calibration_error
from bhc.emission.limits import Limits
from bhc.emission.plan import Cutter, LayerPlan, Plan, make_plan
from bhc.emission.quantisation import Float32, Quantisation, VarianceBits
from bhc.emission.report import Report
from bhc.emission.slim import slim_model
from bhc.emission.watch import Watch

__all__ = [
    "CHUNK",
    "Alarm",
    "Compressed",
    "Cutter",
    "DomainWarning",
    "Float32",
    "Guarantee",
    "LayerPlan",
    "Limits",
    "Plan",
    "Prediction",
    "Quantisation",
    "Report",
    "Request",
    "ThresholdWarning",
    "VarianceBits",
    "Watch",
    "auroc",
    "emit",
    "emit_many",
    "expected_calibration_error",
    "from_file",
    "make_plan",
    "outside_score",
    "read",
    "slim_model",
]
