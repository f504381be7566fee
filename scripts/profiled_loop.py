# SPDX-License-Identifier: Apache-2.0
"""profiled_loop.py FILE: a loop under torch.profiler alone, for old versions of torch."""

import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def main(file):
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(file),
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        for _ in range(5):
            with record_function("forward"):
                loss = model(torch.randn(8, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


if __name__ == "__main__":
    main(sys.argv[1])
