"""The `sluice` command and its help text."""

from typing import Annotated, NoReturn

import typer

from sluice import __version__
from sluice.cli import accounts, documents, evaluations, exports
from sluice.cli.errors import MEANINGS

# \b keeps the line breaks.
CODES = "\b\n" + "\n".join(f"{code:3d}  {meaning}" for code, meaning in MEANINGS.items())

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature
    if wanted:
        typer.echo(f"sluice {__version__}")
        raise typer.Exit


@app.callback(epilog=f"Exit codes:\n\n{CODES}")
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Manage the exports, documents, and rules of a Sluice server."""


accounts.add_to(app)
app.add_typer(exports.app, name="export")
app.add_typer(documents.app, name="document")
app.add_typer(evaluations.app, name="rule")  # with the commands of `rules`


def main() -> NoReturn:
    app(prog_name="sluice")
    raise SystemExit(0)
