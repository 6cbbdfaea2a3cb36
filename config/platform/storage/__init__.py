"""Object storage: the only place that talks to boto3.

Everything here works on the one bucket of the settings and takes object keys. ETags are bare, without the quotes of
the HTTP header. Every request is made at most twice, the second time at once; what comes after that is the caller's
business. No message and no log line holds a key, which would reveal what was exported:
`config.platform.observability.logs.path_hash` stands for one.
"""

from config.platform.storage.clients import (
    Ticket,
    client,
    content_disposition,
    hurry,
    ping,
    presign_download,
    presign_upload,
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
    read_head,
)
from config.platform.storage.uploads import Upload, put

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
    "head",
    "hurry",
    "list_objects",
    "list_uploads",
    "now",
    "ping",
    "presign_download",
    "presign_upload",
    "put",
    "read",
    "read_head",
]
