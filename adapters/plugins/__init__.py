"""
Drivers: how they are found, how they are called, and one that can be scripted.

`registry` watches a directory for drivers and keeps one connection to each; `dra` calls a driver;
`wire` is all that knows the protocol's bytes.  Importing this package loads
no gRPC; its modules do.
"""

import os

# gRPC reads it when it is loaded; without it its remarks stand between the service's log lines.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
