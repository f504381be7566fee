# SPDX-License-Identifier: Apache-2.0
"""Findings about an idle GPU: launches, synchronisations, data loader."""
