"""The command, run in the process of a test."""

from typer.testing import CliRunner

from newton_losses_bench.cli.app import app

# A training of seconds, to which a test adds what it is about.
TINY = (
    *("train", "sorting", "--data", "digits", "--digits", "1", "-n", "3", "--steps", "4", "--eval-every", "2"),
    *("--batch-size", "4", "--validation-sets", "10", "--test-sets", "10", "--device", "cpu"),
)


def command(*words: str) -> tuple[int, str]:
    """The exit code and what was printed, errors included."""
    done = CliRunner().invoke(app, list(words), prog_name="newton-losses", terminal_width=200)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def in_one_line(text: str) -> str:
    """Without the frames and line breaks of a terminal."""
    return " ".join(text.replace("│", " ").split())
