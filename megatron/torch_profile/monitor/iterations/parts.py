# SPDX-License-Identifier: Apache-2.0
"""Parts of an iteration."""

PHASES = ("forward", "backward", "pipeline", "gradients", "parameters", "optimizer", "data")
OTHER = "other"
"""What is in none of the phases."""
PARTS = (*PHASES, OTHER)
WAITING = "waiting"
"""For other ranks, in whichever part."""
PAUSE = "pause"
"""Evaluation and checkpoints, which belong to no iteration."""
