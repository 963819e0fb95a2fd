"""The admin command line, `python -m plugins.admin`: its grammar, and what each command does."""
