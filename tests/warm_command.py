# SPDX-License-Identifier: Apache-2.0
"""`python`, as far as torchrun sees: warm_command.py SOCKET WORD...

The words run as a command line of Python's in a fork of warm_python.py. Streams, environment and
folder are those of this process, which passes on signals and ends as the fork does.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
request = json.dumps(
    {"command": sys.argv[2:], "environment": dict(os.environ), "folder": str(Path.cwd())}
).encode()
socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
server.sendall(request)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda received, _: server.sendall(bytes([received])))
status = int(server.recv(16) or b"1")
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
