"""Networks of Hugging Face transformers that classify, with small configurations made by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from zoo import Example, Network
from zoo.inputs import image, normal, token_numbers
from zoo.operators import provide_torchvision

CLASSES = 10
WORDS, LENGTH = 128, 16
WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 128

ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": 40,
}
DECODER = {**ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
GROUPED = {**DECODER, "num_key_value_heads": 2}
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "image_size": 32,
    "patch_size": 8,
}
SMALL_STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
NAMES = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}

# prefix of the classes: family, configuration
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("BERT-like", ENCODER),
    "DistilBert": (
        "BERT-like",
        {"vocab_size": WORDS, "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER},
    ),
    "Roberta": ("BERT-like", ENCODER),
    "Albert": ("BERT-like", {**ENCODER, "embedding_size": 32}),
    "Electra": ("BERT-like", {**ENCODER, "embedding_size": 32}),
    "Deberta": ("BERT-like", {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "DebertaV2": ("BERT-like", {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "MobileBert": ("BERT-like", {**ENCODER, "embedding_size": 32, "intra_bottleneck_size": 32}),
    "SqueezeBert": ("BERT-like", {**ENCODER, "embedding_size": WIDTH}),
    "MPNet": ("BERT-like", ENCODER),
    "ConvBert": ("BERT-like", {**ENCODER, "embedding_size": 32, "head_ratio": 2, "conv_kernel_size": 5}),
    "FNet": ("BERT-like", ENCODER),
    "ModernBert": (
        "BERT-like",
        {**ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "T5": (
        "BERT-like",
        {
            "vocab_size": WORDS,
            "d_model": WIDTH,
            "d_kv": 16,
            "d_ff": INNER,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "use_cache": False,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "Bart": (
        "BERT-like",
        {
            **NAMES,
            "d_model": WIDTH,
            "encoder_layers": LAYERS,
            "decoder_layers": LAYERS,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": INNER,
            "decoder_ffn_dim": INNER,
            "max_position_embeddings": 40,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": 2,
        },
    ),
    "GPT2": ("GPT-like", {**NAMES, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 40}),
    "GPTNeo": (
        "GPT-like",
        {
            **NAMES,
            "hidden_size": WIDTH,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "intermediate_size": INNER,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 40,
        },
    ),
    "GPTNeoX": ("GPT-like", DECODER),
    "GPTJ": (
        "GPT-like",
        {**NAMES, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 40, "rotary_dim": 8},
    ),
    "OPT": ("GPT-like", {**DECODER, "ffn_dim": INNER, "word_embed_proj_dim": WIDTH}),
    "Bloom": ("GPT-like", {**NAMES, "hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}),
    "Llama": ("GPT-like", GROUPED),
    "Mistral": ("GPT-like", GROUPED),
    "Qwen2": ("GPT-like", GROUPED),
    "Qwen3": ("GPT-like", {**GROUPED, "head_dim": 16}),
    "Gemma": ("GPT-like", {**GROUPED, "head_dim": 16}),
    "Phi": ("GPT-like", DECODER),
}
IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViT", VISION),
    "DeiT": ("ViT", VISION),
    "Beit": ("ViT", {**VISION, "use_relative_position_bias": True, "use_absolute_position_embeddings": False}),
    "Dinov2": ("ViT", {**VISION, "mlp_ratio": 2}),
    "Swin": (
        "Swin",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "Swinv2": (
        "Swin",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "ConvNext": ("ConvNeXt", SMALL_STAGES),
    "ResNet": ("ResNet", {**SMALL_STAGES, "embedding_size": 16}),
    "PoolFormer": ("mixer", SMALL_STAGES),
    "Segformer": (
        "hybrid",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_attention_heads": [1, 2, 3, 4]},
    ),
    "MobileViT": (
        "hybrid",
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 16, 24, 32, 40, 80]},
    ),
}


class Text(nn.Module):
    """The logits for token numbers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


class Pictures(nn.Module):
    """The logits for pictures."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.net(pixel_values=pixel_values).logits


class Sounds(nn.Module):
    """The logits for samples of a sound."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_values: Tensor) -> Tensor:
        return self.net(input_values=input_values).logits


SOUND = {
    **{key: value for key, value in ENCODER.items() if key != "max_position_embeddings"},
    "conv_dim": (16, 16, 32),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 32,
}
ENDED = ("T5", "Bart")  # want a token for the end
MASKED = ("Bert", "DistilBert", "Llama")  # read a mask beside the tokens, by name


def networks() -> tuple[Network, ...]:
    """All that are tried of this source."""
    texts = (_text(name, family, settings) for name, (family, settings) in TEXT.items())
    images = (
        _network(name, family, "ForImageClassification", settings, Pictures, image(64 if name == "MobileViT" else 32))
        for name, (family, settings) in IMAGES.items()
    )
    sound = _network("Wav2Vec2", "hybrid", "ForSequenceClassification", SOUND, Sounds, normal(800))
    return (*texts, *images, sound)


def _text(name: str, family: str, settings: dict[str, Any]) -> Network:
    tokens = token_numbers(LENGTH, WORDS)
    example: Callable[[], Example] = tokens
    if name in MASKED:
        example = partial(_with_mask, tokens)
    if name in ENDED:
        example = partial(_with_end, tokens)
    return _network(name, family, "ForSequenceClassification", settings, Text, example)


def _with_end(tokens: Callable[[], Tensor]) -> Tensor:
    """Tokens of which the last one says that it is the last."""
    numbers = tokens()
    numbers[:, -1] = 2
    return numbers


def _with_mask(tokens: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Tokens of which the last few are padding."""
    numbers = tokens()
    mask = (numbers > 0).long()
    mask[:, -3:] = 0
    return {"input_ids": numbers * mask, "attention_mask": mask}


def _network(
    name: str,
    family: str,
    task: str,
    settings: dict[str, Any],
    answers: type[nn.Module],
    example: Callable[[], Example],
) -> Network:
    return Network(name.lower(), "transformers", family, partial(_build, name, task, settings, answers), example)


def _build(name: str, task: str, settings: dict[str, Any], answers: type[nn.Module]) -> nn.Module:
    provide_torchvision()
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings, num_labels=CLASSES)
    return answers(getattr(transformers, f"{name}{task}")(config))
