# SPDX-License-Identifier: Apache-2.0
"""Spans of the backward pass of modules, drawn into a raw trace from autograd's numbers."""
