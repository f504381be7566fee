# SPDX-License-Identifier: Apache-2.0
"""`merge` and `split`: several ranks on one timeline, and back."""
