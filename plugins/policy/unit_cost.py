"""What a million output tokens cost on a machine that is paid by the hour."""

from __future__ import annotations

from decimal import Decimal, localcontext

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000
#: Six places of a dollar, for the widest amounts this is asked for.
PRECISION = 50


def usd_per_million(usd_per_hour: Decimal, tokens_per_second: Decimal) -> Decimal:
    """Return `usd_per_hour / (tokens_per_second * 3600) * 1e6`, for a speed above 0.

    $1.00 an hour at 30.3 tokens a second is 9.1675…, at 80.7 it is 3.4420…
    """
    with localcontext(prec=PRECISION):
        # One division, at the end: everything before it is exact.
        return usd_per_hour * MILLION / (tokens_per_second * SECONDS_PER_HOUR)
