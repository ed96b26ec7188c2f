"""`python -m xcube`: the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from xcube.demo import command as demo


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit code."""
    parser = argparse.ArgumentParser(prog="xcube", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    summary = "train a small transformer on the sources of the standard library"
    demo.add_arguments(commands.add_parser("demo", help=summary, description=summary))
    chosen = parser.parse_args(arguments)
    return chosen.run(chosen)


if __name__ == "__main__":
    sys.exit(main())
