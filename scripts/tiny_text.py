# SPDX-License-Identifier: Apache-2.0
"""A text of some thousand tokens and its vocabulary, for models that mask words: BERT and T5.

Megatron's mock data has no sentences, and its NullTokenizer no masks. The format is that of
megatron.core.datasets.indexed_dataset: https://github.com/NVIDIA/Megatron-LM
"""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS = 250
_DOCUMENTS, _SENTENCES, _LENGTH = 50, 8, 12
_INT32 = 4  # the format's number for it
_MASKS = ("<extra_id_0>", "<extra_id_1>")
"""T5 takes one for each span that it masks."""


def flags(folder: Path, legacy: bool) -> list[str]:
    """Write text and vocabulary into a folder, and say with which flags Megatron reads them.

    Args:
        folder: which is there.
        legacy: with Megatron's old tokenizer, which newer versions look up on the network.
    """
    vocabulary = [*_SPECIAL, *(f"word{number}" for number in range(_WORDS))]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary))
    named = {"tokenizer_class": "BertTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    _write_text(folder, len(vocabulary))
    read = ["--data-path", str(folder / "text"), "--split", "100,0,0", "--tokenizer-type"]
    if legacy:
        vocab = str(folder / "vocab.txt")
        return [*read, "BertWordPieceLowerCase", "--legacy-tokenizer", "--vocab-file", vocab]
    model = ["--tokenizer-model", str(folder)]
    return [*read, "HuggingFaceTokenizer", *model, "--tokenizer-special-tokens", *_MASKS]


def _write_text(folder: Path, words: int) -> None:
    chosen = random.Random(23)
    sentences = [
        array("i", (chosen.randrange(len(_SPECIAL), words) for _ in range(_LENGTH)))
        for _ in range(_DOCUMENTS * _SENTENCES)
    ]
    (folder / "text.bin").write_bytes(b"".join(one.tobytes() for one in sentences))
    size = sentences[0].itemsize * _LENGTH
    documents = array("q", range(0, len(sentences) + 1, _SENTENCES))
    index = [
        b"MMIDIDX\0\0",
        struct.pack("<QBQQ", 1, _INT32, len(sentences), len(documents)),
        array("i", [_LENGTH] * len(sentences)).tobytes(),
        array("q", range(0, size * len(sentences), size)).tobytes(),
        documents.tobytes(),
    ]
    (folder / "text.idx").write_bytes(b"".join(index))
