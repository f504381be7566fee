# SPDX-License-Identifier: Apache-2.0
"""What an analysis returns, and what is computed over all ranks from it."""
