"""
Make the committed descriptor set anew from the `.proto` files.

Run ``python -m tests.adapters.plugins.descriptors`` after a change of them; it needs grpcio-tools.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).parents[3] / "adapters" / "plugins" / "proto"
COMMITTED = PROTO / "descriptors.binpb"


def compile_protos() -> bytes:
    """Return the descriptor set of all `.proto` files."""
    files = sorted(path.name for path in PROTO.glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "descriptors.binpb"
        arguments = [f"--proto_path={PROTO}", f"--descriptor_set_out={made}", *files]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
        return made.read_bytes()


if __name__ == "__main__":
    COMMITTED.write_bytes(compile_protos())
