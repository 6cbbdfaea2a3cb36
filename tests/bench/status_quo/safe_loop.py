"""Minimal reliable exporter: the bare loop, but each chunk is claimed and finished as in Sluice.

The PUT is conditional. Lines on stdin control the loop, as in `bare_loop`. It claims any waiting chunk. It has no
wake-up messages, lease renewal, retries, logs, or metrics.
"""

import hashlib
import os
import sys
from typing import TYPE_CHECKING

import django
import psycopg

from config.platform.storage.commits import condition
from tests.bench.status_quo.bare_loop import client, copy_slice, print_line

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

    from exports.worker.leases import Claim
    from exports.worker.transitions import ChunkResult


def main() -> None:
    django.setup()
    from exports.worker import leases, transitions

    sys.stdin.readline()  # skip the list of chunks, which only `bare_loop` uses
    storage = client()
    with psycopg.connect(
        os.environ["SOURCE_DATABASE_URL"], autocommit=True, options="-c timezone=UTC -c datestyle=ISO"
    ) as source:
        print_line("ready")
        while sys.stdin.readline():
            held = None
            while claims := leases.claim_batch(backend="safe-loop", sizes={}, held=held):
                transitions.finish([(claims[0], export(claims[0], source, storage))])
                held = claims[0].token
            transitions.free_slots([held] if held else [])
            print_line("done")


def export(claim: "Claim", source: psycopg.Connection, storage: "S3Client") -> "ChunkResult":
    from exports.core.states import Source
    from exports.worker.transitions import ChunkResult

    content = copy_slice(source, claim.pair.key, claim.pair.effective_date.isoformat())
    stored = storage.put_object(
        Bucket=os.environ["S3_BUCKET"], Key=claim.path, Body=content, ContentType="text/csv; charset=utf-8",
        ServerSideEncryption="AES256", **condition(claim.known_file.etag if claim.known_file else None),
    )  # fmt: skip
    return ChunkResult(
        source=Source.LIVE,
        etag=stored["ETag"].strip('"'),
        sha256=hashlib.sha256(content).hexdigest(),
        rows=content.count(b"\n") - 1,
        bytes=len(content),
        header_bytes=content.index(b"\n") + 1,
        data_as_of=claim.claimed_at,
        upload_number=claim.token,
    )


if __name__ == "__main__":
    main()
