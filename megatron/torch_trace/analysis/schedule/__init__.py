# SPDX-License-Identifier: Apache-2.0
"""Phases, micro-batches and the pipeline's bubble."""
