"""What comes out: from a request to a cut, a candidate within the limits, and its files and report."""

from bhc.emission.candidate import Candidate, CandidateFactory
from bhc.emission.compressed import (
    FINER_SCALES,
    SCALES,
    Compressed,
    Float32,
    Limits,
    Prediction,
    Quantisation,
    Request,
    VarianceBits,
    from_file,
    read,
    scales_for,
)
from bhc.emission.cut import (
    BranchCut,
    ContextScales,
    Cut,
    Cutter,
    HeadCut,
    Remains,
    cut_all,
    find_branch_cuts,
    in_order,
    make_cut,
    streams,
)
from bhc.emission.emit import CHUNK, DomainWarning, ThresholdWarning, as_floats, emit, emit_many
from bhc.emission.guarantee import NAME, Alarm, AlarmSamples, Guarantee, auroc, outside_score, upper_bound
from bhc.emission.judge import Judge, expected_calibration_error
from bhc.emission.origins import has_dial, smallest_ratio, weights_for
from bhc.emission.report import Report
from bhc.emission.size_curve import Look, SizeCurve, measure_size_curve
from bhc.emission.weights import SlimLayer, Slimmer, assemble, slim_model
