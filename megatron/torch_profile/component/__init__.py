# SPDX-License-Identifier: Apache-2.0
"""One steppable component instead of a training run: what it takes, and which variant is faster.

config, overrides     what a user asks for, typed       variants   the grid of what is compared
targets, inputs       what is called, and with what     step       one step of a variant
measure/              clocks, samples, FLOPs, bytes, ceilings, compilations, findings
recording, run        variants one after the other, into one run folder
ready/                components that are there by name
answer/               table, JSON, page; conditions of --fail-if
"""
