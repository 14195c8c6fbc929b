"""Write the files that are generated from the table of parameters, or say that they are out of date."""

import argparse
import sys

from vla_edge_ros.parameters.pages import default_file, reference_page
from vla_edge_ros.share import share_directory


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vla_edge_ros.parameters", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files; otherwise only compare")
    args = parser.parse_args(argv)
    root = share_directory()
    generated = {root / "docs/parameters.md": reference_page(), root / "config/edge.yaml": default_file()}
    stale = [path for path, text in generated.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if args.write:
            path.write_text(generated[path])
        print(f"{path.relative_to(root)}: {'written' if args.write else 'out of date, run with --write'}")
    return 1 if stale and not args.write else 0


if __name__ == "__main__":
    sys.exit(main())
