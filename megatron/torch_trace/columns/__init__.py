# SPDX-License-Identifier: Apache-2.0
"""From blocks of events to columns in integer nanoseconds: one builder for every reader of columns.

builder            what a table is, and one block in, its columns out
activity_tables    the tables of an analysis            slice_columns   the table of every slice
activity_blocks    which of them a trace needs, computed before it is read
joined_columns     blocks joined to the whole file      true_times      times that cannot be, mended
slice_table        `read_table`: slices as polars columns
arguments          which arguments are decoded          codes           values as small numbers
block_times, growing_column, intervals, thread_names
"""
