# SPDX-License-Identifier: Apache-2.0
"""An iteration as a graph over ranks: its critical path, and what it would take after a change."""
