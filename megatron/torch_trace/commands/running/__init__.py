# SPDX-License-Identifier: Apache-2.0
"""Subcommands about a training that runs."""
