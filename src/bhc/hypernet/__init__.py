"""Who decides: embedders read a context, generators write a posterior."""

from bhc.hypernet.conditional import ConditionalNetwork, ContextDecoder, check_readable, context_nll
from bhc.hypernet.generators import GENERATORS, Full, GeneratorSpec, Initial, LowRank, ScalesOnly, generator_from_dict
from bhc.hypernet.hypernetwork import EMBEDDING_WIDTH, FEW_LAYERS, Design, HyperNetwork, LayerVectors, build_embedder
