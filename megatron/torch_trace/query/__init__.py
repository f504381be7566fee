# SPDX-License-Identifier: Apache-2.0
"""SQL over the tables of traces: read only, and only what a query names is made.

words       what a query may say, and which tables it names
columns     tables and columns with their units
tables      the tables of traces, or of a folder that `export` wrote
mistakes    what polars says about a query, as one sentence
execution   a query over tables, by polars
child       the same in a process whose memory, disk and time have a bound
answer      `sql`
"""
