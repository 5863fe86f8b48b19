"""Writes a model folder of 0.5 M parameters (2 MB) that vLLM serves without fetching anything.

Runs in vLLM's environment, which has numpy, tokenizers and safetensors. The same arguments give the same files.

    make_tiny_model.py FOLDER              random weights: greedy answers are fixed noise that ends by `max_tokens`
    make_tiny_model.py FOLDER --scripted   greedy answers are one of `SCRIPTS`: plain text, reasoning, or a tool call

In the scripted model every layer writes zero into the residual stream, so the last token alone decides the next one. The
chat template's last token picks the script: ``<|plan|>`` when the request has tools, ``<|muse|>`` when it passes
``chat_template_kwargs: {"enable_thinking": true}``, ``<|talk|>`` otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

# What the tokenizer learns from; each of these becomes one token.
WORDS = (
    *("the", "of", "and", "to", "in", "is", "you", "that", "it", "was", "for", "on", "are", "with", "as", "his", "they"),
    *("be", "at", "one", "have", "this", "from", "or", "had", "by", "hot", "but", "some", "what", "there", "we", "can"),
    *("out", "other", "were", "all", "your", "when", "up", "use", "word", "how", "said", "each", "she", "which", "their"),
    *("time", "if", "will", "way", "about", "many", "then", "them", "would", "write", "like", "so", "these", "her", "long"),
    *("make", "thing", "see", "him", "two", "has", "look", "more", "day", "could", "go", "come", "did", "my", "sound"),
    *("no", "most", "number", "who", "over", "know", "water", "than", "call", "first", "people", "may", "down", "side"),
    *("been", "now", "find", "any", "new", "work", "part", "take", "get", "place", "made", "live", "where", "after"),
    *("back", "little", "only", "round", "man", "year", "came", "show", "every", "good", "me", "give", "our", "under"),
    *("name", "very", "through", "just", "form", "great", "think", "say", "help", "low", "line", "before", "turn", "cause"),
)
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN, "<|talk|>", "<|muse|>", "<|plan|>")

# One entry is one token; an entry occurs only once in the whole table, because it has only one successor.
SCRIPTS = (
    ("<|talk|>", "Hello", ", ", "this ", "answer ", "has ", "eight ", "plain ", "tokens.", END_OF_TURN),
    ("<|muse|>", "<think>", "First ", "I ", "weigh ", "it.", "</think>", "\n\n", "So: ", "forty-", "two.", END_OF_TURN),
    (
        *("<|plan|>", "<tool_call>", '\n{"name": ', '"get_weather", ', '"arguments": ', '{"city": ', '"Par', 'is", '),
        *('"days": ', "3}}", "\n", "</tool_call>", END_OF_TURN),
    ),
)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # plain text to the detokenizer, as in real models

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if tools %}<|plan|>{% elif enable_thinking %}<|muse|>{% else %}<|talk|>{% endif %}{% endif %}"
)
MAX_MODEL_TOKENS = 32_768
SCRIPT_PULL = 3.0  # added to the successor's logit direction; far above the noise of the weights

Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a Llama-shaped model."""

    vocab: int
    layers: int = 2
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    intermediate: int = 256


def make_tokenizer(vocab: int) -> Tokenizer:
    """A byte-level tokenizer with at most so many tokens, in which each piece of a script is one token."""
    draw = random.Random(7)  # noqa: S311 -- made-up sentences
    sentences = [" ".join(draw.choices(WORDS, k=12)).capitalize() + draw.choice(".?!,") for _ in range(4000)]
    pieces = [*TAGS, *(piece for script in SCRIPTS for piece in script if piece not in (*TAGS, *SPECIAL))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(pieces),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in pieces])
    return tokenizer


def make_weights(shape: Shape) -> Weights:
    """Random weights, the same each time."""
    draw = np.random.default_rng(0)

    def normal(*size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return draw.normal(0, 0.05, size).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": normal(shape.vocab, shape.hidden) * 20,
        "lm_head.weight": normal(shape.vocab, shape.hidden),
        "model.norm.weight": np.ones(shape.hidden, np.float32),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": np.ones(shape.hidden, np.float32),
            prefix + "post_attention_layernorm.weight": np.ones(shape.hidden, np.float32),
            prefix + "self_attn.q_proj.weight": normal(shape.heads * shape.head, shape.hidden),
            prefix + "self_attn.k_proj.weight": normal(shape.kv_heads * shape.head, shape.hidden),
            prefix + "self_attn.v_proj.weight": normal(shape.kv_heads * shape.head, shape.hidden),
            prefix + "self_attn.o_proj.weight": normal(shape.hidden, shape.heads * shape.head),
            prefix + "mlp.gate_proj.weight": normal(shape.intermediate, shape.hidden),
            prefix + "mlp.up_proj.weight": normal(shape.intermediate, shape.hidden),
            prefix + "mlp.down_proj.weight": normal(shape.hidden, shape.intermediate),
        }
    return weights


def write_scripts_into(weights: Weights, tokenizer: Tokenizer) -> None:
    """Silence the layers and pull each script's token towards its successor."""
    for name, values in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            values[:] = 0
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for script in SCRIPTS:
        ids = [tokenizer.token_to_id(piece) for piece in script]
        if None in ids:
            raise ValueError(f"no token of its own for {script[ids.index(None)]!r}")
        for current, following in pairwise(ids):
            head[following] += SCRIPT_PULL * embedding[current] / np.linalg.norm(embedding[current])


def write_model(folder: Path, *, is_scripted: bool) -> None:
    """Write everything that vLLM reads from a model's folder."""
    tokenizer = make_tokenizer(1024)
    shape = Shape(vocab=tokenizer.get_vocab_size())
    weights = make_weights(shape)
    if is_scripted:
        write_scripts_into(weights, tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {"bos_token_id": tokenizer.token_to_id(END_OF_TEXT), "eos_token_id": tokenizer.token_to_id(END_OF_TURN)}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_MODEL_TOKENS,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        **ends,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_MODEL_TOKENS,
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    files = {"config": config, "generation_config": ends, "tokenizer_config": tokenizer_config}
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scripted", action="store_true", help="fixed answers instead of noise")
    arguments = parser.parse_args()
    write_model(arguments.folder, is_scripted=arguments.scripted)
    sys.stdout.write(f"{arguments.folder}\n")


if __name__ == "__main__":
    main()
