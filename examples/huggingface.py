"""A BERT of Hugging Face transformers, on texts of different lengths, cut for some of the intents.

    python examples/huggingface.py [--out DIR] [--steps N]

A tiny one is trained here, on sentences that are made here; a trained one of the hub is wrapped in the same way, as
AutoModelForSequenceClassification.from_pretrained(...). Needs pip install 'bhc[huggingface]'.
"""

import argparse
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import bhc

INTENTS = {
    "weather": ("will it rain", "how warm is it", "is there snow", "do i need an umbrella"),
    "music": ("play a song", "stop the music", "next track", "turn the volume up"),
    "alarm": ("wake me up", "set a timer", "cancel my alarm", "remind me later"),
    "lights": ("switch the lamp on", "make it darker", "all lights off", "brighter in the kitchen"),
}
AROUND = ("please", "hey", "tomorrow", "right now", "in the evening", "could you", "thanks a lot", "at home")
INPUTS = ("input_ids", "attention_mask", "position_ids")


def tokeniser() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = [text for said in (*INTENTS.values(), AROUND) for text in said]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> dict[str, list[int]]:
    found = tokenizer(text)
    return {**found, "position_ids": list(range(len(found["input_ids"])))}  # given, their embedding can be cut too


def sentences(tokenizer: PreTrainedTokenizerFast, count: int, *, seed: int) -> list[dict[str, object]]:
    """Items of any length. A list of them is a map-style data set, as one of Hugging Face datasets is."""
    rng, items = random.Random(seed), []
    for _ in range(count):
        label, said = rng.choice(list(enumerate(INTENTS.values())))
        text = " ".join([*rng.choices(AROUND, k=rng.randint(0, 2)), rng.choice(said)])
        items.append({**tokens(tokenizer, text), "label": label})
    return items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("huggingface"))
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    tokenizer, pad = tokeniser(), bhc.data.PadTexts()
    train, validation = sentences(tokenizer, 1_000, seed=1), sentences(tokenizer, 300, seed=2)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    net = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=4, use_cache=False, **sizes))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for batch in [*DataLoader(train, batch_size=16, shuffle=True, collate_fn=pad)] * 3:
        optimizer.zero_grad()
        net(**{name: batch[name] for name in INPUTS}, labels=batch["label"]).loss.backward()
        optimizer.step()
    example = {name: batch[name] for name in INPUTS}
    model = bhc.wrap(net.eval(), bhc.ClassSubsets(4), example_input=example, dynamic_axes=(1,))
    recipe = (bhc.Learn(steps=options.steps, kl_weight=0.02), bhc.Consolidate(steps=options.steps // 2))
    bhc.fit(model, train, validation, recipe=recipe, collate=pad, class_names=tuple(INTENTS))
    small = model.compress(classes=[0, 3]).save(options.out / "small.bhc", overwrite=True)
    print(small.to_onnx(options.out / "small.onnx", overwrite=True).report)
    asked = pad([tokens(tokenizer, "hey is there snow tomorrow"), tokens(tokenizer, "lights off")])
    print([tuple(INTENTS)[label] for label in small.predict({name: asked[name] for name in INPUTS}).labels])


if __name__ == "__main__":
    main()
