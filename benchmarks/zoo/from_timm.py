"""Networks of timm, each the smallest of its kind, on images of 64 x 64 where they take them."""

from functools import partial

from torch import nn

from zoo import Network
from zoo.inputs import image
from zoo.operators import provide_torchvision

CLASSES = 10
SIZE = 64
LARGER = {"efficientformer_l1": 224, "inception_v4": 128, "halonet26t": 256, "nest_tiny": 128}

SMALL = {
    "VGG": "repvgg_a0",
    "ResNet": """
        resnet10t resnet26d ecaresnet26t seresnext26d_32x4d skresnet18 resnest14d res2net50_14w_8s gernet_s
        dla46_c nf_resnet26 cspresnet50 hgnetv2_b0
    """,
    "DenseNet": "densenet121 ese_vovnet19b_slim_dw rdnet_tiny dpn48b",
    "Inception": "inception_v4 xception41",
    "MobileNet": """
        mobilenetv3_small_050 mobilenetv4_conv_small_035 mobileone_s0 lcnet_035 ghostnet_050 hardcorenas_a fbnetc_100
        repghostnet_050 starnet_s1
    """,
    "EfficientNet": "efficientnet_b0 tf_efficientnet_lite0 tinynet_e",
    "RegNet": "regnetx_002 regnety_002 regnetz_005",
    "ConvNeXt": "convnext_atto convnext_zepto_rms convnextv2_atto inception_next_atto mambaout_femto",
    "ViT": """
        vit_tiny_patch16_224 deit_tiny_patch16_224 eva02_tiny_patch14_224 cait_xxs24_224 pit_ti_224
        xcit_nano_12_p16_224 convit_tiny pvt_v2_b0
    """,
    "Swin": "swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 hiera_tiny_224",
    "hybrid": """
        levit_128s mobilevit_xxs mobilevitv2_050 efficientformer_l1 coatnet_pico_rw_224 maxvit_pico_rw_256
        edgenext_xx_small fastvit_t8 repvit_m0_9 efficientvit_b0 efficientvit_m0 tiny_vit_5m_224 visformer_tiny
        botnet26t_256 lambda_resnet26t vit_tiny_r_s16_p8_224
    """,
    "mixer": "mixer_s32_224 resmlp_12_224 gmlp_ti16_224 poolformer_s12 convmixer_768_32",
}


def networks() -> tuple[Network, ...]:
    """All that are tried of this source."""
    return tuple(
        Network(name, "timm", family, partial(_build, name, size), image(size))
        for family, listed in SMALL.items()
        for name, size in ((each, LARGER.get(each, SIZE)) for each in listed.split())
    )


def _build(name: str, size: int) -> nn.Module:
    provide_torchvision()
    import timm

    try:  # those whose weights depend on the size of the image
        return timm.create_model(name, pretrained=False, num_classes=CLASSES, img_size=size)
    except TypeError:
        return timm.create_model(name, pretrained=False, num_classes=CLASSES)
