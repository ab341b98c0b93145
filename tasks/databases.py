"""Where Prefect and MLflow keep what they show: in files of a home, or where the environment says.

The variables are Prefect's and MLflow's own, so that their commands agree with ours.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rufus_core.errors import ConfigError

PREFECT_DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"
MLFLOW_DATABASE = "MLFLOW_BACKEND_STORE_URI"
MLFLOW_SERVER = "MLFLOW_TRACKING_URI"

CONNECT_SECONDS = 10
LOOK_SECONDS = 0.1  # between two looks at whether another process has opened a database
_SCHEMES = {
    PREFECT_DATABASE: ("postgresql+asyncpg",),
    MLFLOW_DATABASE: ("postgresql", "postgresql+psycopg"),
    MLFLOW_SERVER: ("postgresql", "postgresql+psycopg"),
}
_INSTALL = "pip install 'rufus-air[postgres]'"
_FIRST_USE = 0x52756675  # the advisory lock's number: any that nobody else takes
_SSL = {"ssl": "sslmode", "sslmode": "sslmode", "sslrootcert": "sslrootcert"}  # asyncpg's word, and libpq's


def prefect_database() -> str | None:
    """The database that the environment names for a Prefect server of ours."""
    return os.environ.get(PREFECT_DATABASE) or None


def mlflow_database() -> str | None:
    """The database that the environment names for MLflow."""
    return os.environ.get(MLFLOW_DATABASE) or None


def mlflow_elsewhere() -> str | None:
    """The server or database that the environment names for a run's entries, if they aren't to lie in its home."""
    return os.environ.get(MLFLOW_SERVER) or mlflow_database()


def home_database(folder: Path) -> Path:
    """MLflow's own file in its folder of a home."""
    return folder.absolute() / "mlflow.db"


def mlflow_uri(folder: Path) -> str:
    """What an MLflow client opens; `folder` is MLflow's of a home."""
    return mlflow_elsewhere() or f"sqlite:///{home_database(folder)}"


def check_databases() -> None:
    """Raises ConfigError for a database that Prefect or MLflow could not open whoever answers there."""
    for variable, schemes in _SCHEMES.items():
        scheme = os.environ.get(variable, "").partition("://")[0]
        if not scheme.startswith("postgres"):
            continue
        if scheme not in schemes:
            raise ConfigError(
                f"{scheme}:// can't be opened here", where=variable, hint=f"begin it with {schemes[0]}://"
            )
        for package in ("psycopg", "asyncpg"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(f"{package} isn't installed", where=variable, hint=_INSTALL)


def without_password(url: str) -> str:
    """A URL as messages may show it."""
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True)


@contextmanager
def first_use(url: str | None) -> Iterator[None]:
    """One process at a time, of all hosts, opens a Postgres: two at once would both create its tables.

    Anything but a Postgres is opened at once.

    Raises:
        SQLAlchemyError: it doesn't answer.
    """
    if url is None or not url.startswith("postgres"):
        yield
        return
    from sqlalchemy import NullPool, create_engine, text
    from sqlalchemy.engine import make_url

    parts = make_url(url)
    query = {_SSL[name]: value for name, value in parts.query.items() if name in _SSL}
    engine = create_engine(
        parts.set(drivername="postgresql+psycopg", query=query),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args={"connect_timeout": CONNECT_SECONDS},
    )
    with engine.connect() as connection:  # the lock is the connection's, and goes with it
        # Asked again and again: a query that waits is a snapshot, and creating an index may wait for that.
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:number)"), {"number": _FIRST_USE}):
            time.sleep(LOOK_SECONDS)
        yield


def reason(outage: Exception) -> str:
    """The first line of what an outage says."""
    return next(iter(str(outage).strip().splitlines()), type(outage).__name__)
