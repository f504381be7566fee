# SPDX-License-Identifier: Apache-2.0
"""Windows that somebody asks for while training runs."""
