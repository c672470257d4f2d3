"""Networks of pytorchcv, each the smallest of its kind. Most pool by a fixed window and take no smaller images."""

from functools import partial

from torch import nn

from zoo import Network
from zoo.inputs import image
from zoo.operators import provide_torchvision

CLASSES = 10

# name:size of the image
SMALL = {
    "plain CNN": "alexnet:224 zfnet:224 darknet_tiny:224 darknet_ref:192 nin_cifar10:32 diracnet18v2:224",
    "VGG": "vgg11:224 bn_vgg11:224",
    "ResNet": """
        resnet10:224 resnet18_wd4:224 resnet20_cifar10:32 resnetbc14b:224 preresnet10:224 preresnet20_cifar10:32
        resnext20_16x4d_cifar10:32 seresnet10:224 sepreresnet20_cifar10:32 senet16:224 bam_resnet18:224
        cbam_resnet18:224 diaresnet20_cifar10:32 resnesta18:64 resneta10:64 revnet38:224 octresnet10_ad2:224
        scnet50:128 wrn16_10_cifar10:32 rir_cifar10:32 shakeshakeresnet20_2x16d_cifar10:32
        shakedropresnet20_cifar10:32 resdropresnet20_cifar10:32 fractalnet_cifar10:32 dla46c:224 drnc26:224
        isqrtcovresnet18:64 sharesnet18:224 hrnet_w18_small_v1:224 tresnet_m:64
    """,
    "DenseNet": """
        densenet40_k12_bc_cifar10:32 densenet121:224 xdensenet40_2_k24_bc_cifar10:32 condensenet74_c4_g4:224
        peleenet:224 sparsenet121:224 hardnet39ds:224 vovnet27s:224 dpn68:224
    """,
    "Inception": "bninception:224 inceptionv3:299 xception:299 selecsls42:224",
    "SqueezeNet": "squeezenet_v1_0:224 squeezenet_v1_1:224 squeezeresnet_v1_1:224 sqnxt23_w1:224",
    "MobileNet": """
        mobilenet_wd4:224 fdmobilenet_wd4:224 mobilenetv2_wd4:224 mobilenetv2b_wd4:224 mobilenetv3_small_w7d20:224
        igcv3_wd4:224 mnasnet_small:224 fbnet_cb:224 ghostnet:224 channelnet:224
    """,
    "ShuffleNet": """
        shufflenet_g1_wd4:224 shufflenet_g3_wd4:224 shufflenetv2_wd2:224 shufflenetv2b_wd2:224 menet108_8x1_g3:224
    """,
    "EfficientNet": "efficientnet_b0:64 efficientnet_b0b:64 mixnet_s:224",
    "RegNet": "regnetx002:64 regnety002:64",
    "segmentation": """
        cgnet_cityscapes:64 enet_cityscapes:64 erfnet_cityscapes:64 linknet_cityscapes:64 segnet_cityscapes:64
        unet_cityscapes:64 fastscnn_cityscapes:64 sinet_cityscapes:128
    """,
}
SEVERAL_OUTPUTS = {"fastscnn_cityscapes": 0}


def networks() -> tuple[Network, ...]:
    """All that are tried of this source."""
    return tuple(
        Network(name, "pytorchcv", family, partial(_build, name, size), image(size), SEVERAL_OUTPUTS.get(name))
        for family, listed in SMALL.items()
        for name, size in _sized(listed)
    )


def _sized(listed: str) -> list[tuple[str, int]]:
    return [(name, int(size)) for name, _, size in (each.partition(":") for each in listed.split())]


def _build(name: str, size: int) -> nn.Module:
    provide_torchvision()
    from pytorchcv.model_provider import get_model

    extra = {"in_size": (size, size)} if name.endswith("cityscapes") else {}
    return get_model(name, num_classes=CLASSES, **extra)
