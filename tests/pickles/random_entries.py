# SPDX-License-Identifier: Apache-2.0
"""Entries of a history as no program writes them: many shapes, and things that entries share.

python tests/pickles/random_entries.py 60 [SEED]     # compares readers for a minute
"""

from __future__ import annotations

import pickle
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from megatron.torch_trace.pickles.plain_pickle import PlainPickle
from megatron.torch_trace.pickles.rows import Rows

SIZES = (0, 1, 5, 30, 31, 32, 255, 256, 300)
BOUNDS = (0, 255, 256, 65_535, 65_536, 1 << 31, 1 << 32, 1 << 39, 1 << 47, 1 << 63, 1 << 70)
FRAMES = [{"name": name, "filename": name * 20, "line": 7} for name in "abcdefgh"]


def fresh(text: str) -> str:
    """An equal text that is another object, so that a pickle writes it again."""
    return "".join(list(text))


class Maker:
    """Values from a stock that grows: what was made before may come again, as the same object."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.keys = [fresh(f"key{number}") for number in range(12)]
        self.stock: list[Any] = [*FRAMES, *self.keys]

    def value(self, depth: int = 0) -> Any:
        """One value, old or new."""
        rng = self.rng
        kind = rng.randrange(12 if depth < 2 else 7)
        if kind < 2:
            made: Any = rng.choice(self.stock)
        elif kind < 4:
            made = rng.choice(BOUNDS) + rng.randint(-2, 300)
            made = -made if rng.random() < 0.1 else made
        elif kind == 4:
            made = rng.choice((None, True, False, 0.5, -1.0, b"", b"bytes"))
        elif kind < 7:
            made = rng.choice("abé") * rng.choice(SIZES)
            made = fresh(made) if rng.random() < 0.5 else made
        elif kind == 7:
            made = [self.value(depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 5)))]
        elif kind == 8:
            made = [rng.choice(FRAMES) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
        elif kind == 9:
            made = tuple(self.value(depth + 1) for _ in range(rng.randrange(4)))
        elif kind == 10:
            made = {rng.choice(self.keys): self.value(depth + 1) for _ in range(rng.randrange(3))}
        else:
            made = [rng.choice(self.stock) for _ in range(rng.choice((2, 3)))]
        if rng.random() < 0.3:
            self.stock.append(made)
        return made

    def entries(self, count: int) -> list[dict[str, Any]]:
        """Entries of a few shapes, of which those of one shape often follow each other."""
        rng = self.rng
        shapes = [rng.sample(self.keys, rng.randint(1, 8)) for _ in range(rng.randint(1, 12))]
        usual = [{key: self.value() for key in shape} for shape in shapes]
        found: list[dict[str, Any]] = []
        shape = 0
        for number in range(count):
            if rng.random() < 0.15:
                shape = rng.randrange(len(shapes))
            entry = {"action": rng.choice(("alloc", "free"))}
            for key in shapes[shape]:
                kept = usual[shape][key]
                if rng.random() < 0.08:
                    kept = self.value()
                elif isinstance(kept, int) and not isinstance(kept, bool):
                    kept += number
                elif isinstance(kept, str) and rng.random() < 0.5:
                    kept = fresh(kept)
                elif isinstance(kept, list) and rng.random() < 0.5:
                    kept = list(kept)
                # A key may be written anew, too.
                entry[key if rng.random() < 0.97 else fresh(key)] = kept
            if rng.random() < 0.05:
                again = rng.choice(list(entry))
                entry[rng.choice(self.keys)] = entry[again]
            found.append(entry)
        return found


def as_lists(value: Any) -> Any:
    """Without the difference between lists and tuples, and with types, since 1 is True."""
    if isinstance(value, (list, tuple)):
        return [as_lists(one) for one in value]
    if isinstance(value, dict):
        return {key: as_lists(one) for key, one in value.items()}
    return type(value).__name__, value


def differences(seed: int, count: int | None = None) -> tuple[str | None, int]:
    """Where the reader and `pickle.loads` differ in entries of a seed; how many came as rows."""
    rng = random.Random(seed)
    maker = Maker(rng)
    lists = [maker.entries(count or rng.choice((3, 50, 1_100, 2_300))) for _ in range(2)]
    text = pickle.dumps({"device_traces": lists, "again": maker.stock}, 4)
    size = rng.choice((1 << 20, 70_000, 4_096, 997, 61))
    taken: list[Any] = []
    in_rows = 0

    def take(into: list[Any], items: list[Any]) -> bool:
        nonlocal in_rows
        if not isinstance(items[0], (dict, Rows)) or "action" not in items[0]:
            return False
        for one in items:
            if isinstance(one, Rows):
                in_rows += len(one)
                taken.extend(one.dictionaries())
            else:
                taken.append(one)
        return True

    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    again = PlainPickle(pieces, take, as_rows=True).value()["again"]
    expected = pickle.loads(text)
    entries = [entry for one in expected["device_traces"] for entry in one]
    if as_lists(again) != as_lists(expected["again"]):
        return "what comes behind the entries differs", in_rows
    for number, (mine, theirs) in enumerate(zip(taken, entries, strict=True)):
        if as_lists(mine) != as_lists(theirs):
            return f"entry {number}: {mine} instead of {theirs}", in_rows
    return None, in_rows


def main() -> None:
    """Compare for so many seconds."""
    end, seed = time.monotonic() + float(sys.argv[1]), int((sys.argv[2:] or ["1"])[0])
    first, rows = seed, 0
    while time.monotonic() < end:
        try:
            found, in_rows = differences(seed)
        except Exception as error:
            found, in_rows = repr(error), 0
        if found:
            print(f"seed {seed}: {found[:600]}")
        rows += in_rows
        seed += 1
    print(f"{seed - first:,} seeds, {rows:,} entries in rows")


if __name__ == "__main__":
    main()
