"""Networks of vit-pytorch, small and shallow."""

from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from zoo import Network
from zoo.inputs import image
from zoo.operators import provide_torchvision

CLASSES = 10
PLAIN = {"image_size": 32, "patch_size": 8, "dim": 64, "depth": 2, "heads": 4, "dim_head": 16, "mlp_dim": 128}
TWINS = {
    f"s{stage}_{key}": value
    for stage in (1, 2, 3, 4)
    for key, value in {"emb_dim": 16 * 2**stage, "local_patch_size": 2, "global_k": 2, "depth": 1}.items()
}
CVT = {"s1_emb_dim": 16, "s2_emb_dim": 32, "s2_depth": 1, "s2_heads": 2, "s3_emb_dim": 64, "s3_depth": 2, "s3_heads": 2}
CROSSFORMER = {
    "dim": (32, 64, 96, 128),
    "depth": (1, 1, 2, 1),
    "global_window_size": (4, 2, 2, 1),
    "local_window_size": (4, 4, 2, 2),
}
CROSS = {"image_size": 64, "sm_dim": 48, "lg_dim": 64, "sm_patch_size": 8, "lg_patch_size": 16}
SHORT = {"depth": 1, "sm_enc_mlp_dim": 96, "lg_enc_mlp_dim": 128, "lg_enc_depth": 2, "cross_attn_depth": 1}

# module, class, family, size of the image, arguments
NETWORKS: tuple[tuple[str, str, str, int, dict[str, Any]], ...] = (
    ("vit", "ViT", "ViT", 32, PLAIN),
    ("simple_vit", "SimpleViT", "ViT", 32, PLAIN),
    ("deepvit", "DeepViT", "ViT", 32, PLAIN),
    ("cait", "CaiT", "ViT", 32, {**PLAIN, "cls_depth": 1}),
    ("parallel_vit", "ViT", "ViT", 32, PLAIN),
    ("crossformer", "CrossFormer", "hybrid", 64, CROSSFORMER),
    ("simple_vit_with_qk_norm", "SimpleViT", "ViT", 32, PLAIN),
    ("xcit", "XCiT", "ViT", 32, {**PLAIN, "cls_depth": 1}),
    ("pit", "PiT", "ViT", 32, {**PLAIN, "depth": (1, 1)}),
    ("cross_vit", "CrossViT", "ViT", 64, {**CROSS, **SHORT}),
    ("cvt", "CvT", "hybrid", 64, CVT),
    ("twins_svt", "TwinsSVT", "hybrid", 64, TWINS),
    (
        "levit",
        "LeViT",
        "hybrid",
        64,
        {"image_size": 64, "dim": (32, 48, 64), "depth": 1, "heads": (2, 3, 4), "mlp_mult": 2},
    ),
    (
        "nest",
        "NesT",
        "Swin",
        32,
        {"image_size": 32, "patch_size": 4, "dim": 32, "heads": 2, "num_hierarchies": 2, "block_repeats": (1, 1)},
    ),
)


def networks() -> tuple[Network, ...]:
    """All that are tried of this source."""
    return tuple(
        Network(module, "vit-pytorch", family, partial(_build, module, kind, arguments), image(size))
        for module, kind, family, size, arguments in NETWORKS
    )


def _build(module: str, kind: str, arguments: dict[str, Any]) -> nn.Module:
    provide_torchvision()
    return getattr(import_module(f"vit_pytorch.{module}"), kind)(num_classes=CLASSES, **arguments)
