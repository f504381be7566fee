# SPDX-License-Identifier: Apache-2.0
"""The allocator's history: its entries as they are read, and the lifetimes that they tell."""
