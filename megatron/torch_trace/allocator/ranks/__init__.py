# SPDX-License-Identifier: Apache-2.0
"""Several ranks' memory side by side: where each one is, its stage, what is uneven."""
