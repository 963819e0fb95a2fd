"""One PostgreSQL for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from plugins.setup.postgres import EmbeddedPostgres
from tests.databases import fresh_database

# Before anything imports LiteLLM, which would fetch its price list and complain on stderr.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), fsync=False) as server:
        yield server


@pytest.fixture(name="fresh_database")
def _fresh_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """The address of an empty database of this test's own."""
    with fresh_database(postgres) as url:
        yield url
