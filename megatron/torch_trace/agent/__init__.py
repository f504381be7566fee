# SPDX-License-Identifier: Apache-2.0
"""`torch-trace mcp`: the answers of this package as tools for an agent, over stdio alone.

pages         an answer has a bound, and what is longer has pages
recording     what is known of the window that is served, computed once
overview      what was recorded, and the findings
parts         one rank, one module, one collective
changes       critical path, what-if, comparison
questions     SQL, in a process of its own that can be ended
server        the tools and their protocol
"""
