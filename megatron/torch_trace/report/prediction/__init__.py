# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace whatif` answers, as text and as JSON."""
