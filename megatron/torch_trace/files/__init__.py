# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there.

atomic      a path to write to that becomes the target, or nothing
parquet     tables, whose errors are those of the disk
"""
