"""Sealed bytes: what a process of the job has sent, whatever network or library it passed through.

Engines move tensors without asking who is at the other end, so what is to be unpickled, and could run code, is sealed with the
secret of the job first. Where there is no secret, nothing can be sealed, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import hmac

from unisono.comm.control_plane.job_pass import Pass
from unisono.errors import UsageError

SEAL_BYTES = hashlib.sha256().digest_size


def seal(own: Pass, content: bytes) -> bytes:
    """Local: returns the content with a seal; raises `UsageError` where the job has no secret."""
    if not own.secret:
        raise _refusal(own, "cannot be sent")
    return _seal_of(own, content) + content


def unseal(own: Pass, sealed: bytes) -> bytes:
    """Local: returns the content; raises `UsageError` unless a process that knows the secret of the job has sealed it."""
    content = sealed[SEAL_BYTES:]
    if not own.secret or not hmac.compare_digest(sealed[:SEAL_BYTES], _seal_of(own, content)):
        raise _refusal(own, "were received, but not unpickled")
    return content


def _seal_of(own: Pass, content: bytes) -> bytes:
    """Returns the seal of a content."""
    return hmac.digest(own.secret.encode(), b"object\n" + content, "sha256")


def _refusal(own: Pass, what: str) -> UsageError:
    """Returns the error for objects that could come from another user, whose pickles can run code."""
    why = own.no_secret or "they do not carry the seal of this job"
    return UsageError(
        f"Python objects {what}: they could come from another user, as the processes of this job have no common secret: {why}; "
        "export UNISONO_TOKEN, the same random text of 32 characters for all of them"
        if own.no_secret or not own.secret
        else f"Python objects {what}: {why}, so another user of these machines may have sent them; start the job again"
    )
