"""What a layer is: one object a kind, one module a family, and a registry that users add their own to."""

from bhc.layers.along_axes import AlongAxes
from bhc.layers.arguments import (
    EXAMPLES,
    Argument,
    Cells,
    Choice,
    Flag,
    Kept,
    Positive,
    Real,
    Shape,
    Size,
    pair,
    resized,
    sizes,
)
from bhc.layers.aten import Opaque, call_of, is_norm
from bhc.layers.attention import SelfAttention
from bhc.layers.call_families import Movement, Pointwise
from bhc.layers.convolution import c_convolution, conv_padding
from bhc.layers.joins import Add, Concat, Multiply, Shift
from bhc.layers.kind import Elementwise, LayerKind, NoForm, Weighted, Whole, bare_copy, own_copy
from bhc.layers.linear import Embed, Tied, check_words
from bhc.layers.network_inputs import LogMel, NetworkInput, Normalise
from bhc.layers.norms import Affine, ChannelNorm
from bhc.layers.pools import GlobalMean, Subsample, side_by_side
from bhc.layers.recurrent import Recurrence, RecurrentLayer, onnx_recurrence
from bhc.layers.registry import (
    has_kind,
    is_product,
    is_weighted,
    kind_named,
    kind_of,
    kind_tagged,
    kinds,
    kinds_called,
    register_layer,
    weighted_kind,
)
from bhc.layers.reshape import FlattenPlaces, PadChannels, ScatterChannels, Select
from bhc.layers.transposed import TransposedConvolution, transpose_convolve
