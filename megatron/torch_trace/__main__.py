# SPDX-License-Identifier: Apache-2.0
"""`python -m megatron.torch_trace`: torch-trace where its command is not on the PATH."""

from __future__ import annotations

from megatron.torch_trace.commands import main

if __name__ == "__main__":
    main()
