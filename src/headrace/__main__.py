"""`headrace` and `python -m headrace`: the entry of the command line."""

from __future__ import annotations

import codecs
import io
import os
import sys

TYPE_CHECKING = False  # see headrace/__init__.py: the less is imported before Ctrl-C is handled, the better
if TYPE_CHECKING:
    import signal
    from types import FrameType
else:
    import _signal as signal  # the built-in part: all of it takes longer to import than the package itself

INTERRUPTED = 130
OUTDATED = "this environment is older than the checkout: run `make demo` (or `make native`) again"
IMPORTING = "<frozen importlib._bootstrap>"


def interrupted() -> int:
    """Print the one line that Ctrl-C ends with; returns the exit status."""
    line = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C on the current line
    try:  # noqa: SIM105, contextlib is an import
        print(f"{line}headrace: interrupted", file=sys.stderr, flush=True)
    except OSError:  # a full disk
        pass
    return INTERRUPTED


def on_interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: raise KeyboardInterrupt, or end the process where a module is being imported.

    What an extension module runs while it is imported may turn KeyboardInterrupt into an error of its own.
    """
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING:
            os._exit(interrupted())
        frame = frame.f_back
    raise KeyboardInterrupt


def open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed.

    Otherwise the next file or socket would become standard output, and Python's stream would be None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def escape(error: UnicodeError) -> tuple[str, int]:
    """For `codecs.register_error`: characters that an output's encoding lacks, as JSON escapes them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs), error.end


def accept_any_locale() -> None:
    """Escape what standard output cannot encode, and keep bytes of standard input that are not text for its reader."""
    codecs.register_error("headrace.escape", escape)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "headrace.escape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def is_outdated(error: ImportError | OSError) -> bool:
    """Whether a module of this package is not where the map of an editable installation has it."""
    if isinstance(error, ImportError):
        return isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("headrace.")
    path = str(error.filename)
    return path.startswith(os.path.dirname(__file__) + os.sep) and path.endswith(".py")  # noqa: PTH120


def outdated() -> int:
    """Print the line for an installation that does not fit its checkout; returns the exit status."""
    print(f"headrace: error: {OUTDATED}", file=sys.stderr)
    return 1


def of_another_checkout() -> str | None:
    """A sentence if the environment came with a copy of a checkout, and would run the code of the first one."""
    script, here = os.path.realpath(sys.argv[0]), os.path.dirname(__file__)  # noqa: PTH120
    for environment in (os.path.dirname(os.path.dirname(script)), sys.prefix):  # noqa: PTH120
        checkout = os.path.dirname(environment)  # noqa: PTH120
        own = os.path.join(checkout, "src", "headrace")  # noqa: PTH118
        if (
            os.path.isfile(os.path.join(environment, "pyvenv.cfg"))  # noqa: PTH113, PTH118
            and os.path.isdir(own)  # noqa: PTH112
            and not os.path.samefile(own, here)
            and not here.startswith(environment + os.sep)
        ):
            return f"{environment} runs {here}: run `make demo` in {checkout}, which makes it again"
    return None


if sys.argv[1:2] == ["engine-process"]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the server's process as well
elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, on_interrupt)
open_missing_streams()
if foreign := of_another_checkout():
    print(f"headrace: error: {foreign}", file=sys.stderr)
    sys.exit(1)

try:
    from headrace.cli import main as run  # Ctrl-C from here on ends in one line
except (ModuleNotFoundError, FileNotFoundError) as error:
    if not is_outdated(error):
        raise
    sys.exit(outdated())


def main() -> int:
    """Run the command line of this process; returns its exit status."""
    accept_any_locale()
    try:
        return run()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        if not is_outdated(error):
            raise
        return outdated()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the end
        return interrupted()


if __name__ == "__main__":
    sys.exit(main())
