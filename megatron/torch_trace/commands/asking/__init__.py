# SPDX-License-Identifier: Apache-2.0
"""Commands that answer questions of one's own: `sql`, and `mcp` for agents."""
