# SPDX-License-Identifier: Apache-2.0
"""Pickles as plain data: what torch writes of its allocator and of its collectives."""
