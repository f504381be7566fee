# SPDX-License-Identifier: Apache-2.0
"""The version of the package, in the code: a checkout on a PYTHONPATH has no metadata."""

__version__ = "1.0.0"
