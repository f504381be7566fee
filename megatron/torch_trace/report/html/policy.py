# SPDX-License-Identifier: Apache-2.0
"""What a page may do in a browser: run its own scripts, and ask for nothing."""

from __future__ import annotations

import base64
import hashlib


def policy(scripts: list[str], *, served: bool) -> str:
    """A content security policy by which the browser runs these scripts and asks for nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in scripts
    )
    own = "; connect-src 'self'; frame-src 'self'" if served else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"base-uri 'none'; form-action 'none'{own}"
    )
