"""The public names, which ``import bhc`` hands on."""

from bhc import contexts, data, layers, models, tasks, training
from bhc.compressor import Compressor, from_pretrained, load, wrap
from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ConsecutivePairs,
    ContextSpace,
    FeatureSubsets,
    InputDomains,
    Joint,
    ListedSubsets,
    RandomSubsets,
    SingleContext,
    VocabularySubsets,
    register_context,
)
from bhc.emission import Compressed, Float32, Report, VarianceBits, read
from bhc.errors import BhcError
from bhc.fitting import fit
from bhc.formats import Export, Format, WeightForm, open_deployed, register_format
from bhc.graph.basis import Basis, PrincipalAxes
from bhc.hypernet import Full, Initial, LowRank, ScalesOnly
from bhc.layers import LayerKind, register_layer
from bhc.pretraining import BatchNormPretraining, Pretraining, pretrain
from bhc.tasks import Classification, Imitation, Task, register_task
from bhc.training import Consolidate, Learn, MeasureCurvature, Narrow, Processes, two_stage_budget

__all__ = [
    "Basis",
    "BatchNormPretraining",
    "BhcError",
    "BinaryBudget",
    "Budgets",
    "ClassSubsets",
    "Classification",
    "Compressed",
    "Compressor",
    "ConsecutivePairs",
    "Consolidate",
    "ContextSpace",
    "Export",
    "FeatureSubsets",
    "Float32",
    "Format",
    "Full",
    "Imitation",
    "Initial",
    "InputDomains",
    "Joint",
    "LayerKind",
    "Learn",
    "ListedSubsets",
    "LowRank",
    "MeasureCurvature",
    "Narrow",
    "Pretraining",
    "PrincipalAxes",
    "Processes",
    "RandomSubsets",
    "Report",
    "ScalesOnly",
    "SingleContext",
    "Task",
    "VarianceBits",
    "VocabularySubsets",
    "WeightForm",
    "contexts",
    "data",
    "fit",
    "from_pretrained",
    "layers",
    "load",
    "models",
    "open_deployed",
    "pretrain",
    "read",
    "register_context",
    "register_format",
    "register_layer",
    "register_task",
    "tasks",
    "training",
    "two_stage_budget",
    "wrap",
]
