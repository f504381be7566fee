# SPDX-License-Identifier: Apache-2.0
"""GPU work by the module that launched it."""
