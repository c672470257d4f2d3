"""Who decides: embedders read a context, generators write a posterior."""

from bhc.hypernet.conditional import ConditionalNetwork, Design
from bhc.hypernet.decoder import ContextDecoder
from bhc.hypernet.embedders import EMBEDDING_WIDTH, build_embedder
from bhc.hypernet.generators import GENERATORS, Full, GeneratorSpec, LowRank, ScalesOnly, generator_from_dict
from bhc.hypernet.hypernetwork import HyperNetwork
from bhc.hypernet.initial import FEW_LAYERS, Initial, usual_prior_stds
from bhc.hypernet.vectors import LayerVectors

__all__ = [
    "EMBEDDING_WIDTH",
    "FEW_LAYERS",
    "GENERATORS",
    "ConditionalNetwork",
    "ContextDecoder",
    "Design",
    "Full",
    "GeneratorSpec",
    "HyperNetwork",
    "Initial",
    "LayerVectors",
    "LowRank",
    "ScalesOnly",
    "build_embedder",
    "generator_from_dict",
    "usual_prior_stds",
]
