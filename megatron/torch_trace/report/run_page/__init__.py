# SPDX-License-Identifier: Apache-2.0
"""The report of a whole run: its windows side by side, what changed between them, its metrics."""
