# SPDX-License-Identifier: Apache-2.0
"""Changed traces, snapshots, flight records and runs through the commands of `torch-trace`.

    python scripts/fuzz.py --minutes 60 --seed 1 --keep faults/
    python scripts/fuzz.py --again trace 1234        # one input once more, with its traceback

Every input has a number, from which it can be made again. A child runs the commands within its
process, one input after another, with bounded memory; where it dies or takes too long, the parent
notes that and starts another. A fault is: an exception that is no sentence, a death, no end, memory
that runs out, an answer that is no strict JSON, or numbers that cannot be.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

MEMORY = 4 << 30
SECONDS = 60.0
_SHARES = {"trace": 10, "window": 4, "kept": 2, "memory": 4, "flight": 3, "run": 2}


class FaultError(Exception):
    """What a command did and should not have done."""


def run_command(line: str) -> tuple[int, str, str]:
    """`torch-trace LINE` in this process: status, standard output and error."""
    from megatron.torch_trace.commands import run

    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
    before = sys.argv, sys.stdout, sys.stderr
    sys.argv = ["torch-trace", *line.split()]
    sys.stdout, sys.stderr = streams
    try:
        status = run()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv, sys.stdout, sys.stderr = before
    written = []
    for stream in streams:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        written.append(stream.buffer.getvalue().decode("utf-8", "replace"))
    return status, written[0], written[1]


def judge(line: str, out: str) -> None:
    """Run a command and look at how it ended.

    Raises:
        FaultError: not as it should.
    """
    status, stdout, stderr = run_command(line)
    if "memory ran out" in stderr:
        raise FaultError("memory ran out")
    if "Traceback" in stderr or re.search(r"\b(?!OutOfMemory)[A-Z]\w+Error\b", stderr):
        raise FaultError(f"a traceback or the name of an exception: {stderr.strip()[-300:]}")
    if status not in (0, 2, 3):
        raise FaultError(f"status {status}: {stderr.strip()[-300:]}")
    told = [line for line in stderr.splitlines() if not line.startswith("Skipped ")]
    if status == 2 and (len(told) != 1 or stdout):
        raise FaultError(f"status 2 and not one sentence: {stderr[-300:]}")
    if any(ord(c) < 32 and c not in "\n\r\t" for c in stdout + stderr):
        raise FaultError("control characters in what is printed")
    if "--json" in line and stdout:
        look_at(line.split()[0], strict(stdout.encode()))
    for path in Path(out).parent.glob(Path(out).name + "*"):
        if path.suffix == ".json" and is_json(line, stderr):
            strict(path.read_bytes())
        if ".tmp" in path.name:
            raise FaultError(f"{path.name} is left")


def is_json(line: str, stderr: str) -> bool:
    """Whether a command promises JSON: `decompress` hands out as it is what it need not mend."""
    return "decompress" not in line or (
        "--repair" in line and "there is no trace in it" not in stderr
    )


def strict(data: bytes) -> Any:
    """What JSON holds that every reader accepts."""

    def refuse(word: str) -> None:
        raise FaultError(f"the answer holds {word}")

    try:
        # Valid, however long: only Python makes no number of thousands of digits.
        return json.loads(
            data.decode(),
            parse_constant=refuse,
            parse_int=lambda text: int(text) if len(text) < 1_000 else text,
        )
    except RecursionError:
        return None
    except ValueError as error:
        raise FaultError(f"the answer is no JSON: {error}") from error


def look_at(command: str, answer: Any) -> None:
    """Numbers that cannot be: negative times, parts that are not the whole."""
    if command != "analyze":
        return
    for rank in answer["ranks"]:
        for one in (rank, *rank.get("steps", ())):
            parts = one.get("breakdown_ns")
            if parts is None:
                continue
            if min(parts.values()) < 0:
                raise FaultError(f"negative parts: {parts}")
            whole = one.get("window_ns", one.get("end_ns", 0) - one.get("start_ns", 0))
            if sum(parts.values()) != whole:
                raise FaultError(f"parts {parts} are not the whole {whole}")
        for row in rank.get("communication") or ():
            if min(row["calls"], row["time_ns"], row["exposed_ns"], row["bytes"] or 0) < 0:
                raise FaultError(f"negative: {row}")
        if any(row["time_ns"] < 0 for row in rank.get("kernels") or ()):
            raise FaultError("a kernel's time is negative")


def prepared(kind: str, number: int, folder: Path) -> tuple[str, list[str], random.Random]:
    """Input `number` of a kind in `folder`: what was changed, and the commands to run."""
    from fuzz_samples import KINDS

    rng = random.Random(f"{kind} {number}")
    said = KINDS[kind].write(folder, rng)
    commands = list(KINDS[kind].commands)
    chosen = rng.sample(commands, min(3, len(commands)))
    return said, chosen, rng


def one_input(kind: str, number: int, *, loud: bool = False) -> list[dict[str, Any]]:
    """All commands of one input; its faults."""
    faults = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        source, out = Path(folder) / "in", Path(folder) / "out"
        source.mkdir()
        out.mkdir()
        try:
            said, commands, _ = prepared(kind, number, source)
        except Exception as error:
            text = traceback.format_exc()
            return [{"command": "no input was made", "place": repr(error), "text": text}]
        for at, command in enumerate(commands):
            where = source / "rank-0.pt.trace.json" if kind == "trace" else source
            line = command.format(**{"in": where, "out": out / str(at)})
            if loud:
                print("torch-trace", command, flush=True)
            try:
                judge(line, str(out / str(at)))
            except FaultError as fault:
                text = place = str(fault)
            except Exception:
                text = traceback.format_exc()
                steps = [s for s in text.splitlines() if "/torch_trace/" in s]
                place = f"{steps[-1].strip() if steps else ''} {text.strip().splitlines()[-1]}"
            else:
                continue
            faults.append({"command": command, "said": said, "place": place, "text": text})
    return faults


def child() -> None:
    """Inputs whose kinds and numbers stand on standard input, one answer a line."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["POLARS_MAX_THREADS"] = "1"
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        kind, number = line.split()
        answers.write(json.dumps(one_input(kind, int(number))) + "\n")
        answers.flush()


class Child:
    """The process that runs inputs; another one where it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the child)

    def faults(self, kind: str, number: int) -> list[dict[str, Any]]:
        """The faults of one input, its own death and its lasting too long among them."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, __file__, "--child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{kind} {number}\n".encode())
        process.stdin.flush()
        # Processor time, so that a busy machine is no fault.
        begun = _processor_s(process.pid)
        while not select.select([process.stdout], [], [], 1.0)[0]:
            if _processor_s(process.pid) - begun > SECONDS:
                process.kill()
                process.wait()
                return [{"place": "no end", "text": f"more than {SECONDS} s", "command": "?"}]
        answer = process.stdout.readline()
        if not answer:
            status = process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            return [{"place": f"died: {status}", "text": said[-3_000:], "command": "?"}]
        found: list[dict[str, Any]] = json.loads(answer)
        return found


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hunt(minutes: float, seed: int, keep: Path | None) -> int:
    """Inputs for so long; how many kinds of fault there were."""
    rng, end = random.Random(seed), time.monotonic() + 60 * minutes
    inputs: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    running = Child()
    while time.monotonic() < end:
        kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
        number = rng.randrange(1 << 40)
        inputs[kind] += 1
        for fault in running.faults(kind, number):
            seen[fault["place"]] += 1
            if seen[fault["place"]] == 1:
                print(f"{kind} {number}: {fault['command']}: {fault['place']}", flush=True)
                if keep:
                    keep.mkdir(parents=True, exist_ok=True)
                    text = json.dumps(fault | {"input": f"{kind} {number}"}, indent=1)
                    (keep / f"{kind}-{number}.json").write_text(text)
    total = sum(inputs.values())
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(inputs.items()))
    print(f"{total:,} inputs ({counts}) in {minutes:g} minutes; {len(seen)} kinds of fault")
    return len(seen)


def main() -> int:
    """Fuzz, or run one input again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for what is known of each kind of fault")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "NUMBER"))
    parser.add_argument("--write", type=Path, help="with --again: also write the input there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child()
        return 0
    if args.again:
        kind, number = args.again[0], int(args.again[1])
        if args.write:
            shutil.rmtree(args.write, ignore_errors=True)
            args.write.mkdir(parents=True)
            prepared(kind, number, args.write)
        for fault in one_input(kind, number, loud=True):
            print(fault["text"])
        return 0
    return 1 if hunt(args.minutes, args.seed, args.keep) else 0


if __name__ == "__main__":
    sys.exit(main())
