"""How long checks may wait for each other: less than their order's limit, so that they say for whom they waited."""

import time

SHARE = 0.9  # of the limit; the rest is for saying so
LEAST_S = 0.05


class Deadline:
    def __init__(self, limit_ms):
        self._at = time.monotonic() + limit_ms / 1000 * SHARE

    def left_s(self, most=float("inf"), share=1.0):
        return max(LEAST_S, min(most, (self._at - time.monotonic()) * share))
