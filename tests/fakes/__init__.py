"""Stand-ins for what lies outside: providers that do as they are told, and keep a journal."""
