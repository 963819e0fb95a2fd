"""What `deploy/up` does: its data folder, PostgreSQL, LiteLLM itself, and the demo's model."""
