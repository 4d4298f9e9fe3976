"""How the command line names itself, and what it prints where arguments are wrong."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from headrace.errors import ConfigError, MissingDependency
from headrace.extras import install_command

_LEAST_COLUMNS = 20
_COMMAND = re.compile(r"(^ *|`)headrace (?=[a-z])", re.MULTILINE)


def program() -> str:
    """What starts this program here: `headrace`, or the path or the module that was used where PATH has another."""
    script = sys.argv[0] if sys.argv else ""
    folder, name = os.path.split(script)
    if name == "__main__.py" and os.path.basename(folder) == "headrace":  # noqa: PTH119
        return f"{_short(sys.orig_argv[0])} -m headrace"
    found = shutil.which("headrace")
    if name != "headrace" or not folder or (found and os.path.realpath(found) == os.path.realpath(script)):
        return "headrace"
    return _short(script)


def _short(path: str) -> str:
    """A path as a shell takes it, relative where it is below the current folder."""
    try:
        below = os.path.isabs(path) and Path(path).is_relative_to(Path.cwd())
    except FileNotFoundError:  # the current folder has been deleted
        below = False
    return shlex.quote(os.path.relpath(path) if below else path)


def typed(text: str) -> str:
    """The text with its commands (in backticks, or at the start of a line) as they can be typed here."""
    name = program()
    return _COMMAND.sub(lambda found: f"{found[1]}{name} ", text)


class Parser(argparse.ArgumentParser):
    """Prints the usage of the command that was called where its arguments are wrong, and help where it has none.

    Options are not abbreviated: `headrace chat --model X` would be `--model-loader-extra-config X`, and start `tale`.
    """

    _takes_command = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def add_subparsers(self, **options: Any) -> Any:
        self._takes_command = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._takes_command and not args:
            self.print_help()
            self.exit()
        found, unknown = super().parse_known_args(args, namespace)
        if (
            unknown
        ):  # argparse itself leaves them to the outermost parser, whose usage names none of the options
            hint = "; give the model without --model" if unknown[0].partition("=")[0] == "--model" else ""
            self.error(f"unrecognized arguments: {shlex.join(unknown)}{hint}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stderr:
            super()._print_message(message, file)
        else:
            print(message, end="", file=file)  # argparse's ignores a full disk

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\nFor all options: {self.prog} --help\n")


def add_command(
    commands: Any, name: str, arguments: str, *, summary: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a subcommand. `arguments` is what follows the options in its usage."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        usage=f"%(prog)s {arguments}",
        description=textwrap.fill(description, max(_LEAST_COLUMNS, shutil.get_terminal_size().columns - 2)),
        epilog=typed(examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_number(
    parser: argparse._ActionsContainer,
    flag: str,
    default: float | list[int] | None,
    text: str,
    metavar: str = "N",
    kind: type = int,
) -> None:
    """Add a flag for a number, or for one or more where the default is a list; help shows a default but None."""
    several = isinstance(default, list)
    shown = " ".join(map(str, default)) if isinstance(default, list) else f"{default or 0:.9g}"
    parser.add_argument(
        flag, type=kind, metavar=metavar, default=default, nargs="+" if several else None,
        help=text if default is None else f"{text} (default: {shown})",
    )  # fmt: skip


def add_cache_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag for the folder of the hub's cache."""
    parser.add_argument(
        "--download-dir",
        metavar="PATH",
        help="folder of the cache (default: Hugging Face's, see HF_HUB_CACHE)",
    )


def check_range(flag: str, value: float | None, low: float, high: float) -> None:
    """Raises ConfigError for a value out of its range; None, which is not a value, is in every range."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"--{flag} must be between {low} and {high}, got {value}")


def check_writable(what: str, path: str) -> None:
    """Raises ConfigError, before the work is done, where its result could not be written to this file."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"there is no folder {folder}"
    elif not os.access(target if target.exists() else folder, os.W_OK):
        why = "no permission"
    else:
        return
    raise ConfigError(f"{what} cannot be written to {path}: {why}")


def restore_interrupts() -> None:
    """Give Ctrl-C Python's own handler in place of the one for imports (`headrace.__main__`), once they are done.

    asyncio cancels the main task on Ctrl-C only where it finds Python's own.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """For imports that an extra brings. Raises MissingDependency for a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "headrace":
            raise
        raise MissingDependency(f"{what} needs the package {error.name}", install_command(extra)) from error
