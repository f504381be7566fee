# SPDX-License-Identifier: Apache-2.0
"""What is in a trace, and whether it is whole: `info` and `check`."""
