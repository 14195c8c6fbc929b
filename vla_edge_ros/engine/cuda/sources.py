"""What a measurement was made of."""

import hashlib
from pathlib import Path

from vla_edge_ros.engine.cuda.compiler import source_directory


def sources_sha256() -> str:
    """One hash of `cuda/` and of `vla_edge_ros/engine/`, names included."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for root, pattern in ((source_directory(), "*.cu*"), (package, "**/*.py")):
        for path in sorted(root.glob(pattern)):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
