# SPDX-License-Identifier: Apache-2.0
"""A model and a text of Hugging Face's formats, made on the spot: nothing is fetched.

Qwen 2 with two layers, a tokenizer of single characters, and conversations to learn by heart.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def conversations(count: int = 16) -> list[dict[str, Any]]:
    """Of two turns each, no two alike."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What comes after {number}?"},
                {"role": "assistant", "content": f"After {number} comes {number + 1}."},
            ]
        }
        for number in range(count)
    ]


def write_tokenizer(folder: Path) -> Any:
    """A tokenizer of single characters, with a template of conversations."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate((*SPECIAL, *string.printable))}
    inner = Tokenizer(models.WordLevel(words, unk_token=SPECIAL[0]))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        unk_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL),
        chat_template=TEMPLATE,
        model_max_length=128,
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_model(folder: Path) -> None:
    """Weights by chance, the same in every process, and the tokenizer beside them."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    write_tokenizer(folder)
    config = Qwen2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=2,
        torch_dtype="float32",
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)


def write_lines(path: Path, count: int = 16) -> Path:
    """The conversations, one JSON object a line."""
    path.write_text("".join(f"{json.dumps(one)}\n" for one in conversations(count)))
    return path
