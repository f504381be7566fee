# SPDX-License-Identifier: Apache-2.0
"""`torch-trace memory -o memory.html`: memory of all ranks as one page, to read offline."""
