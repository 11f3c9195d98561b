"""Asking the hub for timm's weights: quietly, and without waiting where there is no network."""

import logging
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants


@contextmanager
def asking_hub() -> Iterator[None]:
    """Inside, the hub's client does not tell of every attempt; without a network it makes none, and reads its cache.

    It would try six times for each of two files, which takes the better part of a minute.
    """
    logger, offline = logging.getLogger("huggingface_hub"), constants.HF_HUB_OFFLINE
    level = logger.level
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = offline or not _reachable()
    try:
        with warnings.catch_warnings(action="ignore"):  # of timm, about code of its own
            yield
    finally:
        logger.setLevel(level)
        constants.HF_HUB_OFFLINE = offline


def _reachable() -> bool:
    """Whether the hub's name means anything here; behind a proxy, only the proxy knows."""
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return bool(getproxies())
    return True
