# SPDX-License-Identifier: Apache-2.0
"""Write text files as a Megatron dataset of bytes: one document a file, one token a byte.

    python tools/prepare_text.py OUT                the sources of Python's standard library
    python tools/prepare_text.py OUT FILE...        these files

makes OUT_document.bin and OUT_document.idx, to train on with

    --data-path OUT_document --tokenizer-type NullTokenizer --vocab-size 257

Bytes are tokens 0 to 255, and token 256 ends every document: 257 in all.
"""

from __future__ import annotations

import sys
import sysconfig
import warnings
from pathlib import Path

import numpy as np
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Megatron warns of each optional library it misses
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

END_OF_DOCUMENT = 256


def write_dataset(prefix: Path, files: list[Path]) -> int:
    """Write `<prefix>_document.{bin,idx}` and return its number of tokens.

    Args:
        prefix: path without suffix; its folder is made if missing.
        files: each becomes one document; empty ones are left out.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = IndexedDatasetBuilder(f"{prefix}_document.bin", dtype=np.uint16)
    total = 0
    for file in files:
        text = np.frombuffer(file.read_bytes(), dtype=np.uint8)
        if not text.size:
            continue
        tokens = np.append(text.astype(np.int64), END_OF_DOCUMENT)
        builder.add_document(torch.from_numpy(tokens), [tokens.size])  # it takes tensors only
        total += tokens.size
    builder.finalize(f"{prefix}_document.idx")
    return total


def main(argv: list[str]) -> None:
    """Command line: see the module's docstring."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return
    files = [Path(name) for name in argv[1:]]
    files = files or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    missing = [file for file in files if not file.is_file()]
    if missing:
        sys.exit(f"prepare_text: {missing[0]}: no such file")
    total = write_dataset(Path(argv[0]), files)
    print(f"wrote {argv[0]}_document.{{bin,idx}}: {len(files)} documents, {total:,} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
