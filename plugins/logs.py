"""Logging of this process: our own lines, and of LiteLLM's only what holds no secret.

LiteLLM writes provider answers, request bodies and tracebacks into its log records; a
provider's error may quote the prompt and the key it was sent.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback

OURS = "wicketgate"
#: Set to `full` to see LiteLLM's own records as they are, prompts included.
ESCAPE = "WICKETGATE_LITELLM_LOG"


class WithoutContent(logging.Filter):
    """Replaces a record's text by where it came from and what kind of error it tells of.

    Until `serving` is set no request has come in: the texts are about the start, and stay.
    """

    serving = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not self.serving or record.name.startswith(OURS):
            return True
        if record.name.startswith("uvicorn") and record.levelno < logging.WARNING:
            return True  # the server's notes on its own life
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        if not kind and record.name.startswith("LiteLLM"):
            return False  # without its text it says nothing; ours tells of each failed attempt
        record.msg = f"{record.module}:{record.lineno} {kind}".rstrip()
        record.args = ()
        record.exc_info = None
        record.exc_text = None
        record.stack_info = None
        return True


class WithoutQuery(logging.Filter):
    """Cuts the query off an access line: a client may have put a key there."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(
                argument.partition("?")[0] if isinstance(argument, str) else argument
                for argument in record.args
            )
        return True


_without_content = WithoutContent()
_without_query = WithoutQuery()


def fault(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log that *what* failed: the kind of error and our own lines, never its words.

    An error's text, and that of the errors it came from, may hold a prompt, a key or the
    address of the database.
    """
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logger.error("%s failed: %s\n%s", what, type(error).__name__, frames)


def set_up() -> None:
    """Send our own records to stderr."""
    logger = logging.getLogger(OURS)
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def now_serving() -> None:
    """From here on let nothing of a request into any other library's records.

    Every handler that exists by now is covered, and the one Python falls back to.
    """
    if os.environ.get(ESCAPE) == "full":
        return
    _without_content.serving = True
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        handlers.add(logging.lastResort)
    access = logging.getLogger("uvicorn.access").handlers
    for handler in handlers:
        added = _without_query if handler in access else _without_content
        if added not in handler.filters:
            handler.addFilter(added)
