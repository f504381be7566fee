# SPDX-License-Identifier: Apache-2.0
"""A trace leaves the process: written beside training, compressed, renamed, announced."""
