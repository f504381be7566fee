# SPDX-License-Identifier: Apache-2.0
"""Numbers of the training that runs now: Megatron's timers, iteration times, the GPU."""
