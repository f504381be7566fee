# SPDX-License-Identifier: Apache-2.0
"""Memory of this rank's GPU: allocator snapshots, whose memory it is, out-of-memory errors."""
