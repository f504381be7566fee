# SPDX-License-Identifier: Apache-2.0
"""The text on which the matrix trains models that mask words."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import tiny_text  # noqa: E402


def test_the_text_has_documents_of_sentences_of_words_of_its_vocabulary(tmp_path: Path) -> None:
    tiny_text.flags(tmp_path, legacy=False)
    vocabulary = (tmp_path / "vocab.txt").read_text().split()
    index = (tmp_path / "text.idx").read_bytes()
    head = struct.calcsize("<9sQBQQ")
    magic, version, kind, sentences, ends = struct.unpack("<9sQBQQ", index[:head])
    assert (magic, version, kind, sentences, ends) == (b"MMIDIDX\0\0", 1, 4, 400, 51)
    lengths = struct.unpack_from("<400i", index, head)
    starts = struct.unpack_from("<400q", index, head + 4 * 400)
    documents = struct.unpack_from("<51q", index, head + 12 * 400)
    assert len(index) == head + 12 * 400 + 8 * 51
    assert (set(lengths), starts[:3], documents[:3]) == ({12}, (0, 48, 96), (0, 8, 16))
    words = struct.unpack("<4800i", (tmp_path / "text.bin").read_bytes())
    assert documents[-1] == sentences
    assert {word for word in words if not 5 <= word < len(vocabulary)} == set()


def test_the_flags_name_a_tokenizer_that_lies_beside_the_text(tmp_path: Path) -> None:
    data = ["--data-path", str(tmp_path / "text"), "--split", "100,0,0", "--tokenizer-type"]
    assert tiny_text.flags(tmp_path, legacy=True) == [
        *data, "BertWordPieceLowerCase", "--legacy-tokenizer",
        "--vocab-file", str(tmp_path / "vocab.txt"),
    ]  # fmt: skip
    assert tiny_text.flags(tmp_path, legacy=False) == [
        *data, "HuggingFaceTokenizer", "--tokenizer-model", str(tmp_path),
        "--tokenizer-special-tokens", "<extra_id_0>", "<extra_id_1>",
    ]  # fmt: skip
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert said["tokenizer_class"] == "BertTokenizer"
