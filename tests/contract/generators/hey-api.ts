import { client } from "./generated/hey-api/client.gen.js";
import * as sdk from "./generated/hey-api/index.js";
import { play, token, url } from "./scenario.js";

client.setConfig({ baseUrl: url, auth: token });
const body = (key: string) => ({ dataset: "things", items: [{ key, effectiveDate: "2024-02-29" }], delivery: "single" as const });

await play({
  createExport: async (key) => (await sdk.createExport({ body: body(key), throwOnError: true })).data,
  getExport: async (jobId) => (await sdk.getExport({ path: { jobId }, throwOnError: true })).data,
  download: async (jobId, token) =>
    ((await sdk.download({ path: { jobId }, query: { token }, parseAs: "blob", throwOnError: true })).data as Blob).arrayBuffer(),
  submitDocument: async (file) => (await sdk.submitDocument({ body: { file }, throwOnError: true })).data,
  getTask: async (task_id) => (await sdk.getTask({ path: { task_id }, throwOnError: true })).data,
  getMarkdown: async (task_id) => (await sdk.getMarkdown({ path: { task_id }, parseAs: "text", throwOnError: true })).data,
  createWebhook: async (url) => (await sdk.createWebhook({ body: { url, events: ["export.succeeded"] }, throwOnError: true })).data,
  deleteWebhook: async (webhookId) => {
    await sdk.deleteWebhook({ path: { webhookId }, throwOnError: true });
  },
  refused: async (key) => (await sdk.createExport({ body: body(key) })).error!,
});
