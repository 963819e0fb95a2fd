"""The models of the test configuration, and the file they are written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.fakes.provider import Provider

#: Variable -> provider key; each must be seen by its own provider only.
PROVIDER_KEYS = {
    "WG_TEST_A_KEY": "pk-test-A-5d0c1f7e",
    "WG_TEST_B_KEY": "pk-test-B-91be77aa",
    "WG_TEST_L_KEY": "pk-test-L-04c6d2f3",
}
#: model -> its configured fallbacks; some lead from the EU to the US.
FALLBACKS = {"cloud-eu": ["cloud-us"], "claude-eu": ["claude-us"], "dear": ["cheap"]}
PER_MILLION = 1e-6


class Providers:
    """The four: A in the EU, B in the US, L on our own ground, X an attacker's listener."""

    def __init__(self) -> None:
        self.a, self.b, self.l, self.x = (Provider(name) for name in "ABLX")

    def __iter__(self) -> Any:
        return iter((self.a, self.b, self.l, self.x))

    def reset(self) -> None:
        for provider in self:
            provider.reset()

    def seen(self) -> dict[str, int]:
        """Return how many requests each of A, B and L has in its journal."""
        return {provider.name: len(provider.journal) for provider in (self.a, self.b, self.l)}


NOTHING = {"A": 0, "B": 0, "L": 0}


def _entry(
    provider: Provider,
    model: str,
    identifier: str,
    *,
    kind: str = "openai",
    region: str,
    prices: tuple[float, float] = (2.0, 8.0),
    **info: Any,
) -> dict[str, Any]:
    labels = {"A": "alpha", "B": "beta", "L": "llama.cpp"}
    base = provider.url if kind == "anthropic" else f"{provider.url}/v1"
    return {
        "model_name": model,
        "litellm_params": {
            "model": f"{kind}/raw-{identifier}",
            "api_base": base,
            "api_key": f"os.environ/WG_TEST_{provider.name}_KEY",
        },
        "model_info": {
            "id": identifier,
            "provider": labels[provider.name],
            "region": region,
            "input_cost_per_token": round(prices[0] * PER_MILLION, 12),
            "output_cost_per_token": round(prices[1] * PER_MILLION, 12),
            "max_input_tokens": 32_000,
            "max_output_tokens": 4_096,
            **info,
        },
    }


def _local(provider: Provider, model: str, identifier: str) -> dict[str, Any]:
    engine = {"kind": "llama.cpp", "url": provider.url, "slots": 4, "queue": 4}
    return _entry(
        provider,
        model,
        identifier,
        region="onprem",
        prices=(0.0, 0.0),
        max_input_tokens=4_096,
        max_output_tokens=2_048,
        engine=engine,
    )


def _without_price(entry: dict[str, Any]) -> dict[str, Any]:
    for name in ("input_cost_per_token", "output_cost_per_token"):
        del entry["model_info"][name]
    return entry


def model_list(providers: Providers) -> list[dict[str, Any]]:
    a, b, local = providers.a, providers.b, providers.l
    return [
        _entry(a, "cloud-eu", "eu-1", region="eu"),
        _entry(b, "cloud-us", "us-1", region="us"),
        _entry(a, "out-only", "eu-out", region="eu", prices=(0.0, 10.0), max_input_tokens=128_000),
        _entry(a, "cloud-eu-large", "eu-large", region="eu"),
        _local(local, "local-a", "onprem-a"),
        _local(local, "local/a", "onprem-slash-a"),
        _entry(b, "localx/big", "us-big", region="us"),
        _entry(a, "chat", "chat-eu-1", region="eu"),
        _entry(a, "chat", "chat-eu-2", region="eu"),
        _entry(b, "chat", "chat-us", region="us"),
        # A deployment in each region, for tests of their own.
        _entry(a, "trio", "trio-eu-1", region="eu"),
        _entry(a, "trio", "trio-eu-2", region="eu"),
        _entry(b, "trio", "trio-us", region="us"),
        _entry(a, "pair", "pair-eu", region="eu"),
        _entry(b, "pair", "pair-us", region="us"),
        _entry(a, "frail", "frail-eu", region="eu"),
        _entry(b, "frail", "frail-us", region="us"),
        _entry(a, "claude-eu", "claude-1", kind="anthropic", region="eu"),
        _entry(b, "claude-us", "claude-2", kind="anthropic", region="us"),
        _entry(a, "dear", "dear-eu", region="eu", prices=(0.0, 1000.0)),
        _entry(a, "cheap", "cheap-eu", region="eu", prices=(0.0, 1.0)),
        _entry(a, "cached", "cached-eu", region="eu", cache_read_input_token_cost=5e-07),
        _entry(a, "counted", "counted-eu", region="eu", tokenizer="o200k_base"),
        _without_price(_entry(a, "no-price", "no-price-eu", region="eu")),
        _entry(a, "embed", "embed-eu", region="eu", prices=(1.0, 0.0), mode="embedding"),
    ]


def write_config(shipped: Path, target: Path, providers: Providers) -> Path:
    """Write the shipped configuration's settings with our models to *target*."""
    document = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    document["model_list"] = model_list(providers)
    router = {
        "num_retries": 1,
        "fallbacks": [{model: targets} for model, targets in FALLBACKS.items()],
    }
    document["router_settings"] = {**document.get("router_settings", {}), **router}
    document.pop("wicketgate", None)
    target.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return target
