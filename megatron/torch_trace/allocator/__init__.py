# SPDX-License-Identifier: Apache-2.0
"""Memory of the GPU: allocator snapshots, who holds it, when it peaks, what grows."""
