# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace memory` prints for people."""
