# SPDX-License-Identifier: Apache-2.0
"""Tests in the rooms below import the modules beside this file: pytest adds its folder."""

from __future__ import annotations
