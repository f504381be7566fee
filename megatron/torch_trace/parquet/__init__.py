# SPDX-License-Identifier: Apache-2.0
"""Traces as Parquet, for questions of one's own; `docs/export.md` says what each column is.

events        every slice of the traces
kernels       GPU work, with class, collective, launch and step
collectives   communication, numbered so that ranks can be joined on the same call
steps         the breakdown of every step
ranks         where each rank is, and what aligns it in time
"""

from megatron.torch_trace.parquet.export import Export, export

__all__ = ["Export", "export"]
