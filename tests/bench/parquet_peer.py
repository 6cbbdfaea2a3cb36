"""Alternative for P13: a plain script that reads with ADBC, writes with pyarrow, and uploads with boto3.

It runs in a separate virtual environment, and prints its seconds without imports, and its peak memory in MB. ADBC
returns numeric columns as text, which is cast to the same decimals that Sluice writes.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from pyarrow import parquet


def main(query: str, key: str) -> None:
    started = time.perf_counter()
    with dbapi.connect(os.environ["PEER_DATABASE_URL"]) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        reader = cursor.fetch_record_batch()
        schema = pa.schema([pa.field(field.name, type_of(field.type)) for field in reader.schema])
        with tempfile.NamedTemporaryFile() as file:
            with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for batch in reader:
                    columns = [converted(column) for column in batch.columns]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            file.flush()
            s3 = boto3.client("s3", endpoint_url=os.environ["PEER_S3_ENDPOINT"])
            s3.upload_file(file.name, os.environ["PEER_S3_BUCKET"], key)
    seconds = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    print(json.dumps({"seconds": seconds, "megabytes": peak}))


def type_of(kind: Any) -> Any:
    return pa.decimal128(12, 2) if isinstance(kind, pa.OpaqueType) else kind


def converted(column: Any) -> Any:
    return column.storage.cast(pa.decimal128(12, 2)) if isinstance(column.type, pa.OpaqueType) else column


if __name__ == "__main__":
    main(*sys.argv[1:])
