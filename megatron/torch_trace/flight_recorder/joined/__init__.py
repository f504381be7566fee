# SPDX-License-Identifier: Apache-2.0
"""Records of all ranks, joined: who waits for whom, and who is at fault."""
