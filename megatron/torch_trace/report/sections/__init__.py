# SPDX-License-Identifier: Apache-2.0
"""What a report holds, one module a section; each is written once for every renderer."""
