import * as api from "./generated/openapi-generator/index.js";
import { play, token, url } from "./scenario.js";

const configuration = new api.Configuration({ basePath: url, accessToken: token });
const exports = new api.ExportsApi(configuration);
const documents = new api.DocumentsApi(configuration);
const webhooks = new api.WebhooksApi(configuration);
const body = (key: string) => ({
  exportRequest: { dataset: "things", items: [{ key, effectiveDate: new Date("2024-02-29") }], delivery: api.RequestedDelivery.Single },
});

await play({
  createExport: async (key) => exports.createExport(body(key)),
  getExport: async (jobId) => exports.getExport({ jobId }),
  download: async (jobId, token) => (await new api.DownloadsApi(configuration).download({ jobId, token }))!.arrayBuffer(),
  submitDocument: async (file) => ({ task_id: (await documents.submitDocument({ file })).taskId }),
  getTask: async (taskId) => documents.getTask({ taskId }),
  getMarkdown: async (taskId) => documents.getMarkdown({ taskId }),
  createWebhook: async (url) =>
    webhooks.createWebhook({ newWebhookRequest: { url, events: new Set([api.WebhookEvent.ExportSucceeded]) } }),
  deleteWebhook: async (webhookId) => webhooks.deleteWebhook({ webhookId }),
  refused: async (key) => {
    const error: unknown = await exports.createExport(body(key)).catch((error: unknown) => error);
    if (!(error instanceof api.ResponseError)) throw error;
    return api.ProblemFromJSON(await error.response.json());
  },
});
