# SPDX-License-Identifier: Apache-2.0
"""Scripts that train as pretrain_gpt.py does, with something that befalls a rank.

Whatever takes its time there takes it by clocks that a script sets, or until what it waits for is
there: a busy machine keeps any rank from going on for seconds.
"""

SLOWER_RANK_1 = """
import os, runpy, sys, time
from types import SimpleNamespace
from megatron.core.models.gpt import GPTModel
from megatron.torch_profile.followers import followers
from megatron.torch_profile.monitor import agreement, heartbeat, lifetime
from megatron.torch_profile.monitor.iterations import marks
from torch._C._distributed_c10d import Work

agreement.LEAD_SECONDS, lifetime.LOOK_SECONDS = 0.1, 0.2
# Nobody sleeps: the clocks of the monitor go on by themselves, so far that nothing on a busy
# machine is as long. Rank 0 waits in its next collective for as long as rank 1 is late.
AN_ITERATION, LATE = 1_000 * 10**9, 20_000 * 10**9
forward, wait, rank = GPTModel.forward, Work.wait, os.environ["RANK"]
clock = SimpleNamespace(calls=0, passed=0, waits=False)
heartbeat.time = marks.time = SimpleNamespace(
    monotonic_ns=lambda: time.monotonic_ns() + clock.passed,
    perf_counter_ns=lambda: time.perf_counter_ns() + clock.passed,
    time_ns=time.time_ns,
)

def slow(self, *args, **kwargs):
    # Four micro-batches an iteration.
    iteration, micro_batch = clock.calls // 4 + 1, clock.calls % 4
    clock.calls += 1
    if micro_batch == 0:
        late = iteration in (31, 32, 33)
        clock.passed += AN_ITERATION + LATE * (late and rank == "1")
        clock.waits = late and rank == "0"
        if iteration > 33:
            waits_until_it_has_learned_of_the_request()
    return forward(self, *args, **kwargs)

def waits_until_it_has_learned_of_the_request():
    # For a while at least; so no rank learns of it too late.
    end = time.monotonic() + 20
    while not followers.steps._learned and time.monotonic() < end:
        time.sleep(0.01)

def waiting(work, *args, **kwargs):
    if clock.waits:
        clock.passed, clock.waits = clock.passed + LATE, False
    return wait(work, *args, **kwargs)

GPTModel.forward, Work.wait = slow, waiting
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""

ALLOCATOR_OF_RANK_0 = """
import functools, itertools, os, runpy, sys
import torch
from megatron.core.transformer.mlp import MLP
from megatron.torch_profile.memory import out_of_memory, owners, rank_memory

def snapshot():
    found = owners.owned_ranges(*seen, device="cpu")
    return {"device_traces": [[]], "segments": [
        {"address": one.address, "total_size": one.bytes,
         "blocks": [{"address": one.address, "size": one.bytes}]} for one in found]}

seen, kept, observers, calls = [None, None], [], [], itertools.count()
forward = MLP.forward

def failing(self, *args, **kwargs):
    # Four micro-batches of four layers an iteration: the third layer, micro-batch 1, iteration 7.
    if next(calls) == 6 * 16 + 4 + 2:
        for observe in observers:
            observe(0, 1 << 30, 1 << 35, 1 << 20)
    return forward(self, *args, **kwargs)

if os.environ["RANK"] == "0":
    MLP.forward = failing
    begin = rank_memory.RankMemory.begin
    def remembers(self, *args):
        seen[:] = [self._model, self._optimizer]
        return begin(self, *args)
    rank_memory.RankMemory.begin = remembers
    rank_memory.unavailable = lambda: None
    rank_memory.owned_ranges = functools.partial(owners.owned_ranges, device="cpu")
    torch.cuda.memory._record_memory_history = lambda **call: kept.append(call["enabled"])
    torch.cuda.memory._snapshot = snapshot
    torch._C._cuda_isHistoryEnabled = lambda: False
    torch._C._cuda_attach_out_of_memory_observer = observers.append
sys.argv[0] = "pretrain_gpt.py"
try:
    runpy.run_path("pretrain_gpt.py", run_name="__main__")
finally:
    print("history:", kept)
"""

HANGING_RANK_1 = """
import itertools, os, runpy, sys, time
from pathlib import Path
from megatron.core.transformer.mlp import MLP
from megatron.torch_profile.monitor.hangs import hang_watch

forward, look, calls = MLP.forward, hang_watch.HangWatch.look, itertools.count()
folder = Path(sys.argv[sys.argv.index("--torch-profile-dir") + 1])
first_rank = {"all_reduce", "_coalescing_manager"}
there = {"hanging"} if os.environ["RANK"] == "1" else first_rank
seen_there = {}

def hanging(self, *args, **kwargs):
    # Four micro-batches of four layers an iteration: the third layer, micro-batch 1, iteration 3.
    if os.environ["RANK"] == "1" and next(calls) == 2 * 16 + 4 + 2:
        (folder / "hangs-now").touch()
        waits_for_records()
    return forward(self, *args, **kwargs)

def waits_for_records():
    while len([*folder.rglob("*.hang.json")]) < 2:
        time.sleep(0.1)

def functions(thread):
    frame = sys._current_frames().get(thread)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back

def looking(self, now_ns):
    # A busy machine keeps a rank from going on, too: time passes for the watch only where the rank
    # hangs, once it has been seen there for a second.
    since, beat = seen_there.setdefault("at", now_ns), self._heartbeat
    if not (folder / "hangs-now").exists() or there.isdisjoint(functions(beat.thread)):
        seen_there.clear()
        since = now_ns
    hangs = beat.iteration == 3 and now_ns - since > 1_000_000_000
    return look(self, beat.since_ns + int(self._limit * 1e9) * hangs)

MLP.forward, hang_watch.HangWatch.look = hanging, looking
hang_watch._LONGEST_LOOK = 0.2
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""

LATE = 100.0
"""Seconds that rank 1 is late, once in each log interval; an iteration has 4 micro-batches.

More than a rank ever waits for a core. Nobody sleeps: the clocks of timers and of iterations go on.
"""

SLOW_RANK_1 = f"""
import itertools, os, runpy, sys, time
from types import SimpleNamespace
from megatron.core import timers
from megatron.core.models.gpt import GPTModel
from megatron.torch_profile.metrics.step_times import StepClock

forward, calls, passed = GPTModel.forward, itertools.count(), [0.0]
timers.time = SimpleNamespace(time=lambda: time.time() + passed[0])
StepClock.__init__.__defaults__ = (lambda: time.perf_counter() + passed[0],)

def slow(self, *args, **kwargs):
    if os.environ["RANK"] == "1" and next(calls) in (0, 24):
        passed[0] += {LATE}
    return forward(self, *args, **kwargs)

GPTModel.forward = slow
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""

# Megatron's own calls nobody could save, so only ours fail.
BROKEN_WANDB = """
import runpy, sys
from wandb.sdk import wandb_run

log = wandb_run.Run.log

def broken(self, data, *args, **kwargs):
    if "train/step_time_ms" in data:
        raise ConnectionError("W&B is down")
    return log(self, data, *args, **kwargs)

wandb_run.Run.log = broken
sys.argv[0] = "pretrain_gpt.py"
runpy.run_path("pretrain_gpt.py", run_name="__main__")
"""
