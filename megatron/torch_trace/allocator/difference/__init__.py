# SPDX-License-Identifier: Apache-2.0
"""Two states of memory compared: what grew, what is new, what is gone."""
