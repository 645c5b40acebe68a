"""Errors that programs may catch by either name: that of Horovod or Python, or that of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from unisono.horovod._impl.exceptions import HorovodInternalError as _InternalError


class HorovodInternalError(_InternalError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """An operation failed: ranks disagree on it, a peer is gone, or the communication has ended."""

    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class InvalidRequestError(ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """The operation cannot be submitted as it is."""

    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


@contextmanager
def by_either_name() -> Iterator[None]:
    """Converts exceptions that are raised inside, so that programs can catch them by either name. Local."""
    try:
        yield
    except (HorovodInternalError, InvalidRequestError):
        raise
    except _InternalError as error:
        raise HorovodInternalError(str(error)) from error
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
