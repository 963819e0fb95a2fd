"""The README's second path: Wicketgate on a LiteLLM gateway that somebody already runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.fakes.provider import Provider
from tests.proxy.launch import clean_environment, free_port
from tests.proxy.office import Office

ROOT = Path(__file__).parents[2]
LITELLM = Path(sys.executable).with_name("litellm")
START_LIMIT = 120.0  # seconds
MASTER_KEY = "sk-9d1f7c54a0b84e0d8a6f2b3c"


def existing(provider: Provider) -> dict[str, Any]:
    """Return a configuration as a LiteLLM user would have it: no labels, no flags of ours."""
    return {
        "model_list": [
            {
                "model_name": "gpt",
                "litellm_params": {
                    "model": "openai/gpt-fake",
                    "api_base": f"{provider.url}/v1",
                    "api_key": "os.environ/TEAM_PROVIDER_KEY",
                },
            }
        ],
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


def lines_to_add() -> dict[str, Any]:
    """Return the YAML that the README tells to add."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## On a gateway you already run")[2]
    block = re.search(r"```yaml\n(.*?)```", section, re.DOTALL)
    assert block is not None
    document: dict[str, Any] = yaml.safe_load(block[1])
    return document


def as_told(provider: Provider) -> dict[str, Any]:
    document = existing(provider)
    for section, values in lines_to_add().items():
        document[section] = {**document.get(section, {}), **values}
    document["model_list"][0]["model_info"] = {"id": "gpt-1", "provider": "team", "region": "eu"}
    return document


def environment(**more: str) -> dict[str, str]:
    return {
        **clean_environment(),
        "LITELLM_MASTER_KEY": MASTER_KEY,
        "TEAM_PROVIDER_KEY": "pk-team",
        "PYTHONPATH": str(ROOT),
        **more,
    }


@contextmanager
def gateway(
    folder: Path, document: Mapping[str, Any], env: Mapping[str, str], port: int
) -> Iterator[subprocess.Popen[str]]:
    """Run LiteLLM's own command in *folder*, as its owner does."""
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, str(LITELLM), "--config", "config.yaml"),
                *("--host", "127.0.0.1", "--port", str(port)),
            ],
            cwd=folder,
            env=dict(env),
            stdout=log,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


@pytest.mark.parametrize(
    ("hook", "added", "named"),
    [
        pytest.param(
            "plugins.runtime:start",
            {},
            [
                "LEDGER_URL",
                "DEFAULT_MAX_RETRIES",
                "general_settings.custom_auth",
                "litellm_settings.callbacks",
                "model_list[0].model_info.region",
            ],
            id="hook-only",
        ),
        pytest.param(
            "",
            {"general_settings": {"custom_auth": "plugins.tenant_grants.authenticate"}},
            ["LITELLM_WORKER_STARTUP_HOOKS=plugins.runtime:start"],
            id="door-without-hook",
        ),
    ],
)
def test_a_half_equipped_gateway_does_not_come_up(
    tmp_path: Path, hook: str, added: dict[str, Any], named: list[str]
) -> None:
    """What is missing is named, and nothing is served meanwhile."""
    with Provider("team") as provider:
        document = existing(provider)
        for section, values in added.items():
            document[section] = {**document[section], **values}
        env = environment(**({"LITELLM_WORKER_STARTUP_HOOKS": hook} if hook else {}))
        with gateway(tmp_path, document, env, free_port()) as process:
            code = process.wait(START_LIMIT)
        log = (tmp_path / "log").read_text(encoding="utf-8")

    assert code != 0
    assert [name for name in named if name not in log] == []
    assert "pk-team" not in log


def test_an_equipped_gateway_serves_tenants(tmp_path: Path, fresh_database: str) -> None:
    """With the README's lines the same launch serves keys of ours, and only those."""
    office = Office(fresh_database)
    office("db", "migrate")
    tenant = office.tenant("team", models=["gpt"], providers=["team"], regions=["eu"])
    port = free_port()
    env = environment(
        LEDGER_URL=fresh_database,
        LITELLM_WORKER_STARTUP_HOOKS="plugins.runtime:start",
        DEFAULT_MAX_RETRIES="0",
    )
    with Provider("team") as provider, gateway(tmp_path, as_told(provider), env, port) as process:
        wait_until_ready(port, process, tmp_path / "log")
        body = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}
        answers = {
            key: httpx.post(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                json=body,
                headers={"Authorization": f"Bearer {key}"},
                timeout=30,
            )
            for key in (tenant.key, MASTER_KEY)
        }
        elsewhere = httpx.get(f"http://127.0.0.1:{port}/public/model_hub", timeout=30)

        assert answers[tenant.key].status_code == 200
        assert answers[tenant.key].headers["x-wg-region"] == "eu"
        assert answers[MASTER_KEY].status_code == 401
        assert elsewhere.status_code == 404
        assert len(provider.journal) == 1


def wait_until_ready(port: int, process: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(encoding="utf-8")
        try:
            ready = httpx.get(f"http://127.0.0.1:{port}/health/readiness", timeout=5)
            if ready.status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text(encoding="utf-8"))
