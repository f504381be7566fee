# SPDX-License-Identifier: Apache-2.0
"""One rank's activity with everything placed: launches, window, classes, steps."""
