# SPDX-License-Identifier: Apache-2.0
"""What `torch-trace memory` reads, and what it prints for people."""
