# SPDX-License-Identifier: Apache-2.0
"""What is measured of a step: its time, its work, what the device could do, what went wrong."""
