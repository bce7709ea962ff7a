"""The script `paceline`: imports the command line where an interrupt already ends in one line."""

import sys

INTERRUPTED = 130
"""The exit code that shells give a command which SIGINT ended."""
STOPPED = "Stopped."


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from tuner.cli import main as run  # a second of imports

        run()
    except KeyboardInterrupt:
        sys.stderr.write(f"{STOPPED}\n")
        sys.exit(INTERRUPTED)
