"""Object storage: the only package, apart from `config.dev`, that uses boto3.

All functions use the bucket of the settings and accept object keys. ETags have no quotes, unlike in the HTTP header.
A failed request is retried once, immediately, or twice if obstore sent it first; further retries are up to the caller.
Messages and log lines never contain a key, because it reveals what was exported. They contain its
`config.platform.observability.logs.path_hash`.
"""

from config.platform.storage.clients import (
    Ticket,
    client,
    content_disposition,
    ping,
    presign_download,
    presign_upload,
    use_short_timeouts,
)
from config.platform.storage.copies import copy
from config.platform.storage.errors import Changed, Conflict, Missing, RequestFailed, StorageError, UploadFailed
from config.platform.storage.objects import (
    Blocks,
    Head,
    Listed,
    OpenUpload,
    StoredObject,
    abort_upload,
    delete,
    delete_many,
    head,
    list_objects,
    list_uploads,
    now,
    read,
    read_span,
)
from config.platform.storage.small_gets import etag_of, read_small
from config.platform.storage.small_puts import put_once
from config.platform.storage.uploads import Upload, put
from config.platform.storage.writability import is_suspected, require_writable, suspect

__all__ = [
    "Blocks",
    "Changed",
    "Conflict",
    "Head",
    "Listed",
    "Missing",
    "OpenUpload",
    "RequestFailed",
    "StorageError",
    "StoredObject",
    "Ticket",
    "Upload",
    "UploadFailed",
    "abort_upload",
    "client",
    "content_disposition",
    "copy",
    "delete",
    "delete_many",
    "etag_of",
    "head",
    "is_suspected",
    "list_objects",
    "list_uploads",
    "now",
    "ping",
    "presign_download",
    "presign_upload",
    "put",
    "put_once",
    "read",
    "read_small",
    "read_span",
    "require_writable",
    "suspect",
    "use_short_timeouts",
]
