# SPDX-License-Identifier: Apache-2.0
"""What is decided once in each process: ranks, iterations, folders, the size of a trace."""
