# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one GPU, where a machine has fewer GPUs than a benchmark needs ranks.

    export RANKS_PER_GPU=2 PYTHONPATH=$PWD/benchmarks/ranks_per_gpu:$PYTHONPATH
    python benchmarks/hangs.py OUT

NCCL refuses two ranks of one host on one GPU. Each rank is told to NCCL as a host of its own
(`NCCL_HOSTID`), so that NCCL goes through sockets. What is answered about hangs, losses, spans and
memory is as real as on several GPUs. Times are not: ranks take turns on the GPU.

Python imports a module of this name when it starts, so that nothing else has to know of this.
"""

import os
import sys

_NAME = "RANKS_PER_GPU"

if _NAME in os.environ and "RANK" in os.environ and "NCCL_HOSTID" not in os.environ:
    if not os.environ[_NAME].isdecimal() or int(os.environ[_NAME]) < 1:
        print(f"{_NAME}={os.environ[_NAME]}: must be a whole number from 1 on.", file=sys.stderr)
        os._exit(2)  # an exception would be printed, and the rank would go on without this
    os.environ["NCCL_HOSTID"] = f"rank-{os.environ['RANK']}"
    local = int(os.environ.get("LOCAL_RANK", "0")) // int(os.environ[_NAME])
    os.environ["LOCAL_RANK"] = str(local)
