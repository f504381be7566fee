# SPDX-License-Identifier: Apache-2.0
"""What the names of files end in; `file_names` builds and splits whole names.

Apart from it because writing a file needs no more than these, and a short command would spend more
time on importing those parsers than on its work.
"""

from __future__ import annotations

TRACE_SUFFIX = ".pt.trace.json"
COMPRESSION_SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "none": ""}
TEMPORARY_SUFFIX = ".tmp"
KEPT_ANALYSIS_SUFFIX = ".analysis.parquet"
OLD_KEPT_ANALYSIS_SUFFIX = ".partial.parquet"
"""Until 0.1; "partial" also means a trace that was cut short."""
