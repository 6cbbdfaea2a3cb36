"""The test scenario of generated clients, for the Python client of openapi-generator."""

import hashlib
import os
import time
from datetime import date
from urllib.parse import parse_qs, urlsplit

import openapi_client as api

configuration = api.Configuration(host=os.environ["SLUICE_URL"], access_token=os.environ["SLUICE_TOKEN"])
client = api.ApiClient(configuration)
exports, documents, webhooks = api.ExportsApi(client), api.DocumentsApi(client), api.WebhooksApi(client)


def request(key: str) -> api.ExportRequest:
    item = api.ExportItem(key=key, effectiveDate=date(2024, 2, 29))
    return api.ExportRequest(api.ExportByItems(dataset="things", items=[item], delivery=api.RequestedDelivery.SINGLE))


accepted = exports.create_export(request("JFK"))
while (job := exports.get_export(accepted.job_id)).status not in (api.JobStatus.SUCCESS, api.JobStatus.FAILED):
    time.sleep(0.2)
assert job.receipt
(secret,) = parse_qs(urlsplit(str(job.receipt.signed_url)).query)["token"]
file = api.DownloadsApi(client).download(accepted.job_id, secret)
assert f"sha256:{hashlib.sha256(file).hexdigest()}" == job.receipt.checksum

task = documents.submit_document(("invoice.txt", b"Total: 118.50\n"))
while (end := documents.get_task(task.task_id)).status not in (api.TaskStatus.COMPLETED, api.TaskStatus.FAILED):
    time.sleep(0.2)
assert end.status == api.TaskStatus.COMPLETED
assert "Total: 118.50" in documents.get_markdown(task.task_id)

hook = webhooks.create_webhook(
    api.NewWebhookRequest(url="http://127.0.0.1:9/hook", events=[api.WebhookEvent.EXPORT_DOT_SUCCEEDED])
)
assert hook.secret.startswith("whsec_")
webhooks.delete_webhook(hook.id)

try:
    exports.create_export(request(".."))
except api.ApiException as refused:
    problem = refused.data
assert isinstance(problem, api.Problem)
assert (problem.status, problem.code, [each.pointer for each in problem.errors or []]) == (
    400, "invalid", ["/items/0/key"],
)  # fmt: skip
print("done")  # noqa: T201
