"""What the gateway costs over bare LiteLLM, measured side by side."""
