"""How a command ends when it cannot do what was asked: one sentence on stderr, and an exit code.

0 is fine, 1 an error, 2 wrong usage or configuration, 3 a negative verdict, 130 an interrupt.
"""

from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from policies.quoting import shown
from policies.store import StoreError, StoreUrlError
from tuner.entry import INTERRUPTED, STOPPED
from tuner.load import LoadError
from tuner.output_file import OutputFileError
from tuner.settings import SettingsError
from tuner.workload import WorkloadError

ERROR = 1
USAGE = 2


class CommandError(Exception):
    """One sentence for people, and the exit code."""

    def __init__(self, message: str, exit_code: int = ERROR) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SentenceGroup(TyperGroup):
    """A group of commands that turns the exceptions meant for people into sentences."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what is not meant for people goes through as it is."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):  # whose words leave out what was given
                error.message = _refused(error.__cause__)
            raise
        except (SettingsError, WorkloadError, StoreUrlError) as error:
            _fail(error, USAGE)
        except CommandError as error:
            _fail(error, error.exit_code)
        except (StoreError, LoadError, OutputFileError) as error:
            _fail(error, ERROR)
        except KeyboardInterrupt as error:
            typer.echo(STOPPED, err=True)
            raise typer.Exit(INTERRUPTED) from error


def _refused(error: ValidationError) -> str:
    """What was given for an option or an argument, and what it should be."""
    first = error.errors()[0]
    reason = first["msg"].partition(", unable")[0].replace("Input should", "it should")
    return f"{shown(first['input'])}: {reason}."


def _fail(error: Exception, exit_code: int) -> None:
    typer.echo(str(error), err=True)
    raise typer.Exit(exit_code) from error
