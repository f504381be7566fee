# SPDX-License-Identifier: Apache-2.0
"""What a rank writes when training hangs."""
