"""The commands `commitlake database ...`: the table by whose rows a service's database proves what it committed."""

from __future__ import annotations

from typing import Annotated

import typer

from commitlake.protocol.database_row import TABLE, TIDY_MS, created_by
from commitlake.tools.cli.options import flag, option, optional
from commitlake.tools.cli.tx import length

app = typer.Typer(
    help="The rows that prove commits: make their table, tidy it.",
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode=None,
    no_args_is_help=True,
)

_URL = "SQLAlchemy's address, such as postgresql://HOST/DATABASE, or env:NAME."
Url = Annotated[str, typer.Argument(metavar="URL", help=_URL)]
User = Annotated[str | None, option("--user", "USER", "Of the database, or env:NAME.")]
Password = Annotated[str | None, option("--password", "REFERENCE", "Where it is: env:NAME or file:/path.")]


@app.command()
def create(
    url: Annotated[str | None, typer.Argument(metavar="URL", help=_URL, show_default=False)] = None,
    user: User = None,
    password: Password = None,
    prints: bool = flag("--print", "Print the SQL, for a migration, and do nothing."),
) -> None:
    """Make the table where it is missing, and give the database a name."""
    if prints == (url is not None):
        msg = "give one of URL and --print"
        raise typer.BadParameter(msg)
    if url is None:
        print(created_by().replace("; ", ";\n") + ";")
        return
    from commitlake.clients.proof_rows import opened_rows

    with opened_rows("database", url, user, password) as rows:
        rows.create()
        print(f"the table {TABLE} is there; the name of the database is {rows.database()}")


@app.command()
def tidy(
    url: Url,
    older_than: int | None = optional("--older-than", "TIME", "Their age; 31d, or more.", parser=length),
    user: User = None,
    password: Password = None,
) -> None:
    """Delete old rows; run it once a day.

    A younger row may still have to answer a check. A consumer that comes to a message again, after its row has gone,
    handles it again.
    """
    from commitlake.clients.proof_rows import opened_rows
    from commitlake.config.terminal import counted

    with opened_rows("database", url, user, password) as rows:
        print(f"{counted(rows.tidy(older_than or TIDY_MS), 'row')} deleted")
