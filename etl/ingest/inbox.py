"""Documents that other systems store in the bucket below `etl/inbox/{user id}/`, for submission in batches."""

import re
from functools import cached_property
from itertools import islice

from django.conf import settings

from config.platform import storage
from config.platform.http.problems import BadInput, InputError
from etl.ingest.acceptance import translate_storage_errors
from etl.ingest.uploads import StoredFile
from etl.pipeline.artifacts import inbox_of

OUTSIDE = re.compile(r"(^|/)\.{0,2}(/|$)")  # implementations of S3 interpret such keys differently


class InboxFile(StoredFile):
    """A file of the user's inbox."""

    upload = ""
    pointer = "/prefix"

    def __init__(self, listed: storage.Listed, *, folder: str) -> None:
        self.key = listed.key
        self.listed = listed
        self.path = listed.key.removeprefix(folder)

    @cached_property
    def head(self) -> storage.Listed:
        return self.listed

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def documents_below(prefix: str, *, user_id: int) -> list[InboxFile]:
    """Return the files of the user's inbox whose paths begin with `prefix`, in the order of their paths.

    Raises BadInput if there are none or too many, and StorageUnavailable.
    """
    if prefix and OUTSIDE.search(prefix.removesuffix("/")):
        raise refusal("invalid", "Must be a path below your inbox, without empty parts, `.`, or `..`.")
    folder, limit = inbox_of(user_id), settings.SLUICE.etl_max_batch
    with translate_storage_errors():
        listed = (each for each in storage.list_objects(folder + prefix) if not each.key.endswith("/"))
        found = list(islice(listed, limit + 1))
    if not found:
        raise refusal("unknown_file", f"No path below {folder} begins with this prefix.")
    if len(found) > limit:
        raise refusal("too_many_documents", f"A batch can have {limit:,} documents; more paths begin with this prefix.")
    return [InboxFile(each, folder=folder) for each in found]


def refusal(code: str, detail: str) -> BadInput:
    return BadInput(InputError(pointer="/prefix", code=code, detail=detail))
