"""`python -m plugins.admin`."""

from plugins.admin.cli import run

if __name__ == "__main__":
    run()
