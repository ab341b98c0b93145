"""Where the `rufus` command starts. It imports nothing, so that an interrupt is told plainly from the first moment."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells count it


def main() -> None:
    """Run the command line. An interrupt that no command took, as while its parts are imported, is one line."""
    try:
        from rufus_core.cli.main import main as run  # takes some tenths of a second

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
