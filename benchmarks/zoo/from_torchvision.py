"""Networks of torchvision, each the smallest of its kind, on images of 64 x 64 where they take them."""

from functools import partial

from torch import nn

from zoo import Network
from zoo.inputs import image, normal
from zoo.operators import provide_torchvision

CLASSES = 10
SIZE = 64
LARGER = {"inception_v3": 96}

SMALL = {
    "plain CNN": "alexnet",
    "VGG": "vgg11 vgg11_bn",
    "ResNet": "resnet18 resnet50 wide_resnet50_2 resnext50_32x4d r3d_18 mc3_18",
    "DenseNet": "densenet121",
    "Inception": "googlenet inception_v3",
    "SqueezeNet": "squeezenet1_0 squeezenet1_1",
    "MobileNet": "mobilenet_v2 mobilenet_v3_small mobilenet_v3_large mnasnet0_5",
    "ShuffleNet": "shufflenet_v2_x0_5 shufflenet_v2_x1_0",
    "EfficientNet": "efficientnet_b0 efficientnet_v2_s",
    "RegNet": "regnet_x_400mf regnet_y_400mf",
    "ConvNeXt": "convnext_tiny",
    "ViT": "vit_b_32",
    "Swin": "swin_t swin_v2_t",
    "hybrid": "maxvit_t",
    "segmentation": "deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large fcn_resnet50",
}
VIDEOS = ("r3d_18", "mc3_18")  # read frames
FRAMES = 4


def networks() -> tuple[Network, ...]:
    """All that are tried of this source."""
    return tuple(_network(name, family) for family, listed in SMALL.items() for name in listed.split())


def _network(name: str, family: str) -> Network:
    size = LARGER.get(name, SIZE)
    example = normal(3, FRAMES, size, size) if name in VIDEOS else image(size)
    build = partial(_build, name, segments=family == "segmentation")
    return Network(name, "torchvision", family, build, example, "out" if family == "segmentation" else None)


def _build(name: str, *, segments: bool) -> nn.Module:
    provide_torchvision()
    import torchvision

    extra = {}
    if segments:
        extra["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        extra |= {"init_weights": False, "aux_logits": False}
    if name == "vit_b_32":
        extra["image_size"] = SIZE
    if name == "maxvit_t":
        return torchvision.models.MaxVit(
            input_size=(SIZE, SIZE),
            stem_channels=16,
            partition_size=2,
            block_channels=[16, 32, 64],
            block_layers=[1, 1, 2],
            head_dim=16,
            stochastic_depth_prob=0.0,
            num_classes=CLASSES,
        )
    return torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **extra)
