# SPDX-License-Identifier: Apache-2.0
"""`python -m megatron.torch_trace`: torch-trace where its command is not on the PATH."""

from __future__ import annotations

if __name__ == "__main__":
    from megatron_torch_profile import torch_trace

    torch_trace()
