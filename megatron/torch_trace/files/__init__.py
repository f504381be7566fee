# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there.

atomic      a path to write to that becomes the target, or nothing
unchanged   files that must stay the same while they are read
parquet     tables, whose errors are those of the disk
"""
