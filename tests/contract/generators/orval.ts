import * as api from "./generated/orval.js";
import { play, token } from "./scenario.js";

const signedIn = { headers: { Authorization: `Bearer ${token}` } };
const body = (key: string) => ({ dataset: "things", items: [{ key, effectiveDate: "2024-02-29" }], delivery: "single" as const });

/** Return the data of a response, if it has the expected status. */
function data<T extends { status: number; data: unknown }, S extends T["status"]>(response: T, status: S): Extract<T, { status: S }>["data"] {
  if (response.status !== status) throw new Error(JSON.stringify(response));
  return response.data as Extract<T, { status: S }>["data"];
}

await play({
  createExport: async (key) => data(await api.createExport(body(key), signedIn), 202),
  getExport: async (jobId) => data(await api.getExport(jobId, signedIn), 200),
  download: async (jobId, token) => data(await api.download(jobId, { token }), 200).arrayBuffer(),
  submitDocument: async (file) => data(await api.submitDocument({ file }, signedIn), 202),
  getTask: async (taskId) => data(await api.getTask(taskId, {}, signedIn), 200),
  getMarkdown: async (taskId) => data(await api.getMarkdown(taskId, signedIn), 200),
  createWebhook: async (url) => data(await api.createWebhook({ url, events: ["export.succeeded"] }, signedIn), 201),
  deleteWebhook: async (webhookId) => {
    data(await api.deleteWebhook(webhookId, signedIn), 204);
  },
  refused: async (key) => data(await api.createExport(body(key), signedIn), 400),
});
