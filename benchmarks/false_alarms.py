# SPDX-License-Identifier: Apache-2.0
"""How often the monitor calls a healthy rank slow, and whether it names ranks that sleep.

    python benchmarks/false_alarms.py               # 4 ranks, gloo, 2,000 iterations, 90 s
    python benchmarks/false_alarms.py --sleeps 20   # then 20 sleeps, each in 3 iterations

Ranks *work* by sleeping, so that other programs on the machine disturb them little: 40 ms an
iteration, which vary by 3 % (`--noise`), one in 200 of them with 20 ms more (a garbage collection).
Every 100 iterations there is an evaluation, every 250 a checkpoint, on one rank longer than on the
others. Store, messages and threads are those of a training.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))
WORK, HICCUP, EPISODE = 0.04, 0.02, 12
SIZES = (0.3, 0.5, 0.75, 1.0)


def sleeper(since: int, ranks: int) -> tuple[int, float]:
    """Rank and seconds of an episode, by its number."""
    return since * 3 % ranks, WORK * SIZES[since // 2 % 4]


def train(iterations: int, sleeps: int, noise: float, *, sampled: bool) -> None:
    """In a process of training."""
    import torch

    from megatron.torch_profile.monitor.channel import open_channel
    from megatron.torch_profile.monitor.heartbeat import Heartbeat
    from megatron.torch_profile.monitor.iterations.marks import HostMarks
    from megatron.torch_profile.monitor.iterations.monitor import Monitor
    from megatron.torch_profile.monitor.iterations.phase_clock import PhaseClock
    from megatron.torch_profile.monitor.iterations.sampling import EVERY, Sampling
    from megatron.torch_profile.monitor.iterations.seams import seams
    from megatron.torch_profile.plan.topology import discover

    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    with suppress(PermissionError):  # they mostly sleep, and take little from others
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    draw = random.Random(rank)
    clock = PhaseClock(HostMarks())
    sampling = Sampling(EVERY if sampled else 1)
    monitor = Monitor(clock, discover(), open_channel("false-alarms"), 100, sampling)
    heartbeat = Heartbeat(clock, monitor=monitor, sampling=sampling)
    monitor.start()
    grads = torch.ones(1000)
    with seams(clock):
        for iteration in range(1, iterations + sleeps * EPISODE + 1):
            heartbeat.begin_step(iteration)
            seconds = WORK * draw.gauss(1, noise) + HICCUP * (draw.random() < 0.005)
            episode, within = divmod(iteration - iterations - 1, EPISODE)
            if episode >= 0 and within < 3 and sleeper(episode, ranks)[0] == rank:
                seconds += sleeper(episode, ranks)[1]
            clock.begin("forward")
            time.sleep(seconds)
            clock.end("forward")
            torch.distributed.all_reduce(grads)
            for every, name, lasts in ((100, "evaluation", 0.05), (250, "checkpoint", 0.1)):
                if iteration % every == 0 and iteration <= iterations:
                    heartbeat.begin_pause(name)
                    time.sleep(lasts * (1 + 2 * (rank == 1)))
                    torch.distributed.barrier()
                    heartbeat.end_pause()
        heartbeat.close()
        monitor.stop()
    torch.distributed.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--sleeps", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.03, help="deviation of the work")
    parser.add_argument(
        "--sampled", action="store_true", help="parts of few iterations, as on a GPU"
    )
    options = parser.parse_args()
    if "RANK" in os.environ:
        train(options.iterations, options.sleeps, options.noise, sampled=options.sampled)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    ended = subprocess.run(
        [*command, str(options.ranks), __file__, *sys.argv[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    pattern = r"rank (\d+) .*since iteration (\d+): .*seen in iteration (\d+)"
    found = [tuple(map(int, line)) for line in re.findall(pattern, ended.stdout)]
    healthy = [line for line in found if line[1] <= options.iterations]
    print(f"{len(healthy)} alarms in {options.iterations:,} healthy iterations: {healthy}")
    right = 0
    for episode in range(options.sleeps):
        first = options.iterations + 1 + episode * EPISODE
        rank = sleeper(episode, options.ranks)[0]
        right += any(r == rank and s >= first and at <= first + 2 for r, s, at in found)
    if options.sleeps:
        print(f"{right} of {options.sleeps} sleeps named within 3 iterations")
        print(f"{len(found) - len(healthy) - right} other lines: {found[len(healthy) :]}")
    if ended.returncode:
        sys.exit(ended.stdout + ended.stderr)


if __name__ == "__main__":
    main()
