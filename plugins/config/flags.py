"""What LiteLLM's own settings must be for the promises to hold: names and data, no decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

START_HOOK = "plugins.runtime:start"
AUTHENTICATE = "plugins.tenant_grants.authenticate"
DOORS = [
    *("plugins.tenant_grants.tenant_grants", "plugins.router_hooks.router_hooks"),
    "plugins.budget_hooks.budget_hooks",
]
#: The same doors by class, as they are found in a running LiteLLM.
DOOR_CLASSES = (
    *("plugins.tenant_grants.TenantGrants", "plugins.router_hooks.RouterHooks"),
    "plugins.budget_hooks.BudgetHooks",
)
#: Of LEDGER_URL; a test holds them to `ledger.database.SCHEMES`.
LEDGER_SCHEMES = ("postgresql", "postgres")
MAX_RETRIES = 5

#: The sections of the file that we read.
MODEL_LIST = "model_list"
GENERAL, LITELLM, ROUTER = "general_settings", "litellm_settings", "router_settings"
ROUTER_GENERAL = "router_general_settings"
VARIABLES_SECTION = "environment_variables"
OURS = "wicketgate"
#: Parts of our section that are read, and on which nothing acts yet.
NOT_IN_FORCE = ("routes", "cascades")


@dataclass(frozen=True, slots=True)
class Flag:
    """What one of LiteLLM's settings must be.

    Attributes:
        why: What goes wrong otherwise.

        write: The value to write, as YAML, where leaving it out is a problem too; "" elsewhere.
    """

    section: str
    name: str
    allowed: Callable[[Any], bool]
    rule: str
    why: str
    write: str = ""

    @property
    def needed(self) -> bool:
        return bool(self.write)

    @property
    def remedy(self) -> str:
        if self.needed:
            return f"write {self.name}: {self.write} (else {self.why})"
        return take_out(self.why)


def take_out(why: str) -> str:
    return f"take it out ({why})"


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is known or value == known for known in values)


def _true(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: v is True, "must be true", why, write="true")


def _false(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: v is False, "must be false", why, write="false")


def _off(section: str, name: str, why: str) -> Flag:
    return Flag(section, name, lambda v: not v, "must not be set", why)


_UNSEEN = "calls made on this way are seen by no policy"
_OTHER_ROAD = "it opens a road to a provider around grants"
_CLIENT_CHOOSES = "callers could choose destination or credentials"
_RECORDS_LEAVE = "records of calls would leave by a way that no grant covers"
_OTHER_TEXT = "it puts another prompt or model in the place of the one that was granted"
_CALLS_TO_CHOOSE = "it makes calls of its own to choose a model"
_WORDS_LEAVE = "alerts carry providers' words, which may quote a prompt, to a third party"
_ONE_FOR_ALL = "it would go to every deployment that states none of its own"

FLAGS: tuple[Flag, ...] = (
    Flag(
        GENERAL, "custom_auth", _is(AUTHENTICATE), f"must be {AUTHENTICATE}",
        "LiteLLM's own keys open everything", write=AUTHENTICATE,
    ),
    _true(GENERAL, "custom_auth_run_common_checks", "LiteLLM's own admin routes stay open"),
    _true(GENERAL, "disable_model_info_refresh", "LiteLLM calls every provider on its own"),
    Flag(
        LITELLM, "callbacks", lambda v: isinstance(v, list) and v[:3] == DOORS,
        f"must begin with {', '.join(DOORS)}", "grants would not hold at each attempt",
        write=f"[{', '.join(DOORS)}]",
    ),
    _true(LITELLM, "enable_post_custom_auth_checks", "LiteLLM's second wall stays down"),
    _true(LITELLM, "global_disable_no_log_param", "a caller could switch the bookkeeping off"),
    _false(LITELLM, "expose_router_debug_in_errors", "errors would name internal models"),
    _false(LITELLM, "allow_dynamic_callback_disabling", "a caller could switch our hooks off"),
    _true(LITELLM, "turn_off_message_logging", "prompts would reach logs and callbacks"),
    Flag(
        LITELLM, "num_retries", lambda v: type(v) is int and 0 <= v <= MAX_RETRIES,
        f"must be a whole number from 0 to {MAX_RETRIES}",
        "a call that fails may be paid for many times", write="1",
    ),
    Flag(
        ROUTER, "num_retries", lambda v: type(v) is int and 0 <= v <= MAX_RETRIES,
        f"must be a whole number from 0 to {MAX_RETRIES}", "every retry is a paid attempt",
    ),
    _off(GENERAL, "custom_auth_settings", "its modes fall back to LiteLLM's own keys"),
    _off(GENERAL, "allow_client_side_credentials", _CLIENT_CHOOSES),
    _off(GENERAL, "configurable_clientside_auth_params", _CLIENT_CHOOSES),
    _off(GENERAL, "forward_client_headers_to_llm_api", _CLIENT_CHOOSES),
    _off(GENERAL, "forward_llm_provider_auth_headers", _CLIENT_CHOOSES),
    _off(GENERAL, "forward_openai_org_id", _CLIENT_CHOOSES),
    _off(GENERAL, "pass_through_endpoints", _OTHER_ROAD),
    _off(GENERAL, "enable_openai_websocket_passthrough", _OTHER_ROAD),
    _off(GENERAL, "plugins", "they are reverse proxies to other servers"),
    _off(GENERAL, "infer_model_from_keys", "models would be listed that no entry names"),
    _off(GENERAL, "expose_fallback_errors_to_caller", "providers' words would reach callers"),
    _off(
        GENERAL, "dangerously_allow_mock_testing_request_params", "callers could fake failures"
    ),
    _off(GENERAL, "completion_model", "it replaces the model that was granted"),
    _off(GENERAL, "allow_requests_on_db_unavailable", "calls would pass unchecked"),
    _off(GENERAL, "background_health_checks", _UNSEEN),
    _off(GENERAL, "store_model_in_db", "models could be added past this file"),
    _off(GENERAL, "database_url", "LiteLLM would run its own migrations there"),
    _off(GENERAL, "cancel_on_disconnect", "attempts would end without being recorded"),
    _off(GENERAL, "dangerously_permit_weak_or_unset_master_key", "anyone could be the master"),
    _off(GENERAL, "enable_jwt_auth", "tokens would open what no key was granted"),
    _off(GENERAL, "enable_oauth2_auth", "tokens would open what no key was granted"),
    _off(GENERAL, "enable_oauth2_proxy_auth", "headers would open what no key was granted"),
    _off(GENERAL, "public_routes", "paths would be open without a key"),
    _off(GENERAL, "alerting", _WORDS_LEAVE),
    _off(GENERAL, "litellm_key_header_name", "keys are read from Authorization and x-api-key"),
    Flag(
        GENERAL, "enforce_fallback_model_access", lambda v: v is True, "must not be false",
        "LiteLLM's own check of fallbacks would be off",
    ),
    Flag(
        GENERAL, "always_include_stream_usage", lambda v: v is None, "must be left out",
        "unset is the only way in which every stream reports its usage",
    ),
    Flag(
        LITELLM, "cache", lambda v: v is False, "must be false or left out",
        "an answer kept for one tenant would be given to another",
    ),
    _off(LITELLM, "cache_params", "an answer kept for one tenant would be given to another"),
    _off(LITELLM, "disable_streaming_logging", "streams would end without being recorded"),
    _off(LITELLM, "forward_traceparent_to_llm_provider", "a caller's header would leave"),
    _off(LITELLM, "add_user_information_to_llm_headers", "tenants would be named to providers"),
    _off(LITELLM, "default_fallbacks", "they send a call to models it was not granted"),
    _off(LITELLM, "fallbacks", "state them under router_settings"),
    _off(LITELLM, "context_window_fallbacks", "state them under router_settings.fallbacks"),
    _off(LITELLM, "content_policy_fallbacks", "state them under router_settings.fallbacks"),
    _off(LITELLM, "model_alias_map", "one name would stand for another past the grants"),
    _off(LITELLM, "input_callback", _RECORDS_LEAVE),
    _off(LITELLM, "success_callback", _RECORDS_LEAVE),
    _off(LITELLM, "failure_callback", _RECORDS_LEAVE),
    _off(LITELLM, "model_group_settings", _CLIENT_CHOOSES),
    _off(LITELLM, "use_litellm_proxy", "every call would go to another gateway"),
    _off(LITELLM, "api_base", _ONE_FOR_ALL),
    _off(LITELLM, "api_key", _ONE_FOR_ALL),
    _off(LITELLM, "custom_provider_map", "providers of its own making are seen by no policy"),
    _off(LITELLM, "websearch_interception_params", _UNSEEN),
    _off(LITELLM, "global_prompt_directory", _OTHER_TEXT),
    _off(LITELLM, "global_bitbucket_config", _OTHER_TEXT),
    _off(LITELLM, "global_gitlab_config", _OTHER_TEXT),
    _off(LITELLM, "guardrails", _UNSEEN),
    _off(LITELLM, "vector_store_registry", _UNSEEN),
    _off(LITELLM, "set_verbose", "prompts and keys would be printed"),
    _true(ROUTER, "disable_cooldowns", "a call of one tenant could rest a model for all"),
    _off(ROUTER, "default_fallbacks", "they send a call to models it was not granted"),
    _off(ROUTER, "default_deployment", "an unknown model would be served by it"),
    _off(ROUTER, "model_group_alias", "one name would stand for another past the grants"),
    _off(ROUTER, "context_window_fallbacks", "state them under fallbacks"),
    _off(ROUTER, "content_policy_fallbacks", "state them under fallbacks"),
    _off(ROUTER, "alerting_config", _WORDS_LEAVE),
    _off(ROUTER, "plugins", _OTHER_ROAD),
    _off(ROUTER, "enable_tag_filtering", "tags would choose the deployment"),
    _off(ROUTER, "cache_responses", "an answer kept for one tenant would be given to another"),
    _off(ROUTER, "default_litellm_params", _ONE_FOR_ALL),
    _off(ROUTER, "guardrail_list", _UNSEEN),
    _off(ROUTER, "router_general_settings", _OTHER_ROAD),
    _off(ROUTER_GENERAL, "pass_through_all_models", _OTHER_ROAD),
)  # fmt: skip

#: Whole sections of LiteLLM's, and what goes wrong with each.
SECTIONS = {
    "include": "what other files add is not checked; copy it into this one",
    "guardrails": _UNSEEN,
    "policies": _UNSEEN,
    "policy_attachments": _UNSEEN,
    "prompts": _OTHER_TEXT,
    "mcp_servers": _UNSEEN,
    "mcp_tools": _UNSEEN,
    "vector_store_registry": _UNSEEN,
    "search_tools": _UNSEEN,
    "sandbox_tools": _UNSEEN,
    "agents": _UNSEEN,
    "agent_list": _UNSEEN,
    "assistant_settings": _OTHER_ROAD,
    "files_settings": _OTHER_ROAD,
    "finetune_settings": _OTHER_ROAD,
    "default_vertex_config": _OTHER_ROAD,
    "worker_registry": _OTHER_ROAD,
}
#: Sections that may be there; anything else is a typing error, or read by nobody.
KNOWN_SECTIONS = (
    *(MODEL_LIST, GENERAL, LITELLM, ROUTER, ROUTER_GENERAL, OURS, VARIABLES_SECTION),
    *("credential_list", "callback_settings"),
)

#: LiteLLM's callbacks that send prompts on, or make calls of their own.
CALLBACKS = {
    "websearch_interception": _UNSEEN,
    "code_interpreter_interception": _UNSEEN,
    "compression_interception": _UNSEEN,
    "litellm_agent": _UNSEEN,
    "vector_store_pre_call_hook": _UNSEEN,
    "presidio": _UNSEEN,
    "llamaguard_moderations": _UNSEEN,
    "openai_moderations": _UNSEEN,
    "lakera_prompt_injection": _UNSEEN,
    "aporia_prompt_injection": _UNSEEN,
    "google_text_moderation": _UNSEEN,
    "llmguard_moderations": _UNSEEN,
    "azure_content_safety": _UNSEEN,
    "detect_prompt_injection": _UNSEEN,
    "dotprompt": _OTHER_TEXT,
    "bitbucket": _OTHER_TEXT,
    "gitlab": _OTHER_TEXT,
    "humanloop": _OTHER_TEXT,
}
#: Those that keep what they see within the gateway, or send figures only.
HARMLESS_CALLBACKS = ("prometheus", "otel", "hide_secrets", "banned_keywords")

#: Fields of an entry's `litellm_params` with which a call leaves its deployment.
LEAKS = {
    "silent_model": "it sends every call to a second model",
    "use_in_pass_through": _OTHER_ROAD,
    "use_litellm_proxy": "calls would go to another gateway",
    "configurable_clientside_auth_params": _CLIENT_CHOOSES,
    "auto_router_config": _CALLS_TO_CHOOSE,
    "auto_router_config_path": _CALLS_TO_CHOOSE,
    "auto_router_default_model": _CALLS_TO_CHOOSE,
    "auto_router_embedding_model": _CALLS_TO_CHOOSE,
    "complexity_router_config": _CALLS_TO_CHOOSE,
    "complexity_router_default_model": _CALLS_TO_CHOOSE,
    "adaptive_router_config": _CALLS_TO_CHOOSE,
    "adaptive_router_default_model": _CALLS_TO_CHOOSE,
    "quality_router_config": _CALLS_TO_CHOOSE,
    "quality_router_default_model": _CALLS_TO_CHOOSE,
    "fallbacks": "state them under router_settings.fallbacks",
    "context_window_fallback_dict": "state them under router_settings.fallbacks",
    "model_list": "it brings deployments without labels",
    "prompt_id": _OTHER_TEXT,
    "guardrails": _UNSEEN,
    "vector_store_ids": _UNSEEN,
    "mock_response": "it answers without a model",
}

#: Variables that name a database which LiteLLM would take for its own.
FOREIGN_DATABASES = ("DATABASE_URL", "DIRECT_URL")
#: Variables that change what LiteLLM loads or calls, whatever stands in the file.
VARIABLES = {
    **dict.fromkeys(
        FOREIGN_DATABASES, ("LiteLLM would migrate it", "name the ledger's database in LEDGER_URL")
    ),
    "USE_LITELLM_PROXY": ("every call would go to another gateway", "unset it"),
    "STORE_MODEL_IN_DB": ("models could be added past the file", "unset it"),
    "LITELLM_CONFIG_BUCKET_NAME": ("LiteLLM would load another file than this one", "unset it"),
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": (
        "anyone could be the master", "unset it",
    ),
}  # fmt: skip
#: From these three LiteLLM makes a DATABASE_URL.
DATABASE_PARTS = ("DATABASE_HOST", "DATABASE_USERNAME", "DATABASE_NAME")
